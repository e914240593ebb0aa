"""What each setting of LiteLLM that has no place in a Velox file means for who moves, and what to do instead.

Knows: one line a setting. Does not know: which settings can be carried over. A setting that stands nowhere here is
told, too, in general words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

__all__ = ["deployment_setting", "section_setting"]

_UNKNOWN: Final = "Velox has nothing that this could be"
_PRICE: Final = "Velox has prices of its own; VELOX_PRICES names others (docs/prices.md)"
_DEFAULT: Final = "Velox sends the body that the client sent: let clients send it"
_DATABASE: Final = "Velox keeps what it stores in VELOX_LEDGER, by rules of its own (docs/keys.md, docs/ledger.md)"
_LOGGING: Final = "Velox has no callbacks to other services: it has /metrics for Prometheus, and an access log"
_LOGS: Final = "Velox logs JSON, never a body, and sends no reports"
_CACHE: Final = "Velox keeps no answers"
_GUARD: Final = "Velox does not look into prompts and answers"
_HEALTH: Final = "give upstreams a `probe`, such as probe: {path: /health, every: 5s}; requests that fail count anyway"
_REST: Final = "Velox decides by the kind of failure and the upstream's Retry-After: there is no such number"
_BUDGET: Final = (
    "write it as one of `budgets`, which need VELOX_LEDGER (docs/budgets.md): until then nothing limits what is spent"
)
_REDIS: Final = (
    "it may hold a password: set VELOX_REDIS_URL=redis://:PASSWORD@HOST:PORT/0"
    " and several gateways hold their limits together; nothing else is kept there"
)
_KEYS_OF_DATABASE: Final = (
    "keys that LiteLLM has made stay there: `velox import litellm-db` takes them, so that clients need no new ones; see"
    " docs/moving-in.md"
)
_CLIENT_RETRIES: Final = "retries are the same for all upstreams: VELOX_RETRIES"
_STATUSES: Final = "VELOX_RETRY_STATUSES says which statuses are tried again"
_UI_MODELS: Final = "models that were added in its UI are not in this file"
_IN_FILE: Final = "give Velox the secret in a file (file:PATH)"
_OWN_AUTH: Final = "Velox knows clients by their keys (docs/keys.md)"
_AFFINITY: Final = "`balance: hash` or `balance: prefix` keeps a session or a prompt at one upstream"
_ADMIN: Final = "Velox's administration by HTTP has its own rules: see docs/admin-api.md"
_ONE_MODEL: Final = "a route with match.paths, and `model`, asks for one model whatever the request says"
_VERIFY: Final = "Velox always checks certificates; give the upstream `ca_file` for authorities of your own"

_DEPLOYMENT: Final[Mapping[str, str]] = {
    **dict.fromkeys(("temperature", "max_tokens", "top_p", "seed", "stop", "n", "user", "frequency_penalty"), _DEFAULT),
    **dict.fromkeys(("presence_penalty", "response_format", "tools", "tool_choice", "max_completion_tokens"), _DEFAULT),
    **dict.fromkeys(("extra_body", "metadata", "reasoning_effort", "thinking", "stream", "dimensions"), _DEFAULT),
    **dict.fromkeys(("max_retries", "num_retries"), _CLIENT_RETRIES),
    **dict.fromkeys(("max_budget", "budget_duration"), _BUDGET),
    **dict.fromkeys(("cooldown_time", "allowed_fails"), _REST),
    **dict.fromkeys(("mock_response", "mock_timeout"), "`velox sim` is a server that pretends to be a provider"),
    **dict.fromkeys(("drop_params", "additional_drop_params", "allowed_openai_params", "modify_params"), _DEFAULT),
    **dict.fromkeys(("guardrails", "prompt_id", "cache_control_injection_points"), _GUARD),
    "api_version": "the path of this provider has none in Velox",
    "region_name": "Velox does not choose by region: tags and routes can (match.tags)",
    "ssl_verify": _VERIFY,
    "tag_regex": "a route can ask for a header, such as match: {headers: {user-agent: claude-code/*}}",
    "use_in_pass_through": "Velox passes every path on; VELOX_PATHS says which",
    "use_litellm_proxy": "Velox asks the upstream itself",
    "base_model": _PRICE,
    "merge_reasoning_content_in_choices": "Velox does not change answers",
    "configurable_clientside_auth_params": "a client can't choose the upstream's address or key",
    **dict.fromkeys(("itpm", "otpm"), "a limit's `tpm` counts input and output together (docs/limits.md)"),
    **dict.fromkeys(
        ("default_api_key_rpm_limit", "default_api_key_tpm_limit"), "a limit with `per: key` (docs/limits.md)"
    ),
    "max_file_size_mb": "VELOX_MAX_BODY",
}
_MODEL_INFO: Final[Mapping[str, str]] = {
    "mode": "Velox passes each kind of request to its path, so it needs no mode",
    "id": "a deployment is called by its upstream; where fallbacks name the id, they lead there",
    "base_model": _PRICE,
    "health_check_timeout": _HEALTH,
    "health_check_model": _HEALTH,
    "disable_background_health_check": _HEALTH,
    "access_groups": "name the models in the `models` of a key (docs/keys.md)",
    "team_id": "give the team a key, and name it in the route's match.keys",
    "max_tokens": "Velox does not count a prompt before it is sent on",
    "max_input_tokens": "Velox does not count a prompt before it is sent on",
}
_ROUTER: Final[Mapping[str, str]] = {
    **dict.fromkeys(("redis_host", "redis_port", "redis_password", "redis_url", "redis_db", "cache_kwargs"), _REDIS),
    **dict.fromkeys(("allowed_fails", "cooldown_time", "disable_cooldowns", "allowed_fails_policy"), _REST),
    **dict.fromkeys(("retry_policy", "model_group_retry_policy"), _STATUSES),
    "retry_after": "Velox waits for the upstream's Retry-After (VELOX_RETRY_MAX_WAIT at most)",
    "cache_responses": _CACHE,
    "enable_pre_call_checks": "Velox does not count a prompt before it is sent on",
    "routing_strategy_args": "`balance` has no arguments",
    "default_litellm_params": _DEFAULT,
    "provider_budget_config": _BUDGET,
    "tag_filtering_match_any": "one of a route's match.tags is enough",
    **dict.fromkeys(("optional_pre_call_checks", "deployment_affinity_ttl_seconds"), _AFFINITY),
    "model_group_affinity_config": _AFFINITY,
    **dict.fromkeys(("enable_health_check_routing", "health_check_staleness_threshold"), _HEALTH),
    "background_health_check_model_groups": _HEALTH,
    "enable_weighted_failover": "a further attempt is at another upstream of the route always, while one works",
    "max_retries": _CLIENT_RETRIES,
    "enable_pre_call_check": "Velox does not count a prompt before it is sent on",
    "ignore_invalid_deployments": "`velox check` reports all problems, and Velox does not start with any",
    **dict.fromkeys(("set_verbose", "debug_level"), _LOGS),
    **dict.fromkeys(
        ("default_priority", "polling_interval"), "a key's `priority` orders waiting requests (docs/limits.md)"
    ),
    "client_ttl": "VELOX_EGRESS_MAX_AGE is how long a connection is kept",
    "caching_groups": _CACHE,
    "guardrail_list": _GUARD,
    "alerting_config": _LOGGING,
    "search_tools": "Velox calls no tools",
    "assistants_config": "Velox passes /v1/assistants on as any path",
}
_LIBRARY: Final[Mapping[str, str]] = {
    "allowed_fails": _ROUTER["allowed_fails"],
    **dict.fromkeys(("cooldown_time", "retry_policy", "allowed_fails_policy"), _REST),
    **dict.fromkeys(("cache", "cache_params", "caching"), _CACHE),
    **dict.fromkeys(("callbacks", "success_callback", "failure_callback", "service_callbacks"), _LOGGING),
    **dict.fromkeys(("turn_off_message_logging", "redact_user_api_key_info", "langfuse_default_tags"), _LOGGING),
    **dict.fromkeys(("redact_messages_in_exceptions", "default_team_settings", "datadog_params"), _LOGGING),
    **dict.fromkeys(("set_verbose", "json_logs", "telemetry"), _LOGS),
    **dict.fromkeys(("drop_params", "modify_params", "enable_json_schema_validation"), _DEFAULT),
    **dict.fromkeys(("max_budget", "budget_duration", "max_user_budget", "max_internal_user_budget"), _BUDGET),
    **dict.fromkeys(("default_internal_user_params", "upperbound_key_generate_params"), _DATABASE),
    **dict.fromkeys(("key_generation_settings", "default_key_generate_params"), _DATABASE),
    **dict.fromkeys(("guardrails", "prompt_injection_params"), _GUARD),
    **dict.fromkeys(("ssl_verify", "ssl_certificate"), _VERIFY),
    "force_ipv4": "Velox asks for addresses of both kinds and takes those that answer",
    "max_parallel_requests": "an upstream's `concurrency`, or a limit's, holds requests at once (docs/limits.md)",
    "mcp_aliases": "Velox speaks no MCP",
    "model_alias_map": "a route with `match: {models: [ALIAS]}` and `model: NAME` is an alias",
}
_SERVER: Final[Mapping[str, str]] = {
    "database_url": _KEYS_OF_DATABASE,
    **dict.fromkeys(("store_model_in_db", "supported_db_objects"), _UI_MODELS),
    **dict.fromkeys(("alerting", "alerting_threshold", "alert_types", "alert_to_webhook_url"), _LOGGING),
    **dict.fromkeys(("background_health_checks", "health_check_interval", "health_check_details"), _HEALTH),
    **dict.fromkeys(("custom_auth", "enable_jwt_auth", "litellm_jwtauth"), _OWN_AUTH),
    **dict.fromkeys(("allowed_ips", "use_x_forwarded_for"), "restrict connections by the network"),
    **dict.fromkeys(("key_management_system", "key_management_settings"), _IN_FILE),
    **dict.fromkeys(("user_header_name", "user_header_mappings"), "a route can ask for a header (match.headers)"),
    "pass_through_endpoints": "Velox passes every path on: a route with match.paths can send one elsewhere",
    "forward_client_headers_to_llm_api": "Velox passes a client's headers on, but for credentials (docs/keys.md)",
    "forward_openai_org_id": "VELOX_UPSTREAM_ACCOUNT_HEADERS=pass does this where the client's own key is forwarded",
    "max_parallel_requests": "an upstream's `concurrency`, or a limit's, holds requests at once (docs/limits.md)",
    "max_request_size_mb": "VELOX_MAX_BODY",
    "max_response_size_mb": "Velox passes an answer on as it comes and holds little of it",
    "allowed_routes": "VELOX_PATHS says which paths pass",
    "public_routes": "each path asks for a key, where there are keys",
    **dict.fromkeys(("embedding_model", "image_generation_model", "moderation_model"), _ONE_MODEL),
    **dict.fromkeys(("enable_oauth2_auth", "enable_oauth2_proxy_auth", "oauth2_config_mappings"), _OWN_AUTH),
    **dict.fromkeys(("litellm_key_header_name", "allow_user_auth", "service_account_settings"), _OWN_AUTH),
    **dict.fromkeys(("use_azure_key_vault", "use_google_kms"), _IN_FILE),
    **dict.fromkeys(("admin_only_routes", "custom_sso", "disable_master_key_return"), _ADMIN),
    **dict.fromkeys(("custom_key_generate", "default_team_disabled"), _ADMIN),
    **dict.fromkeys(("disable_adding_master_key_hash_to_db", "disable_prisma_schema_update"), _DATABASE),
    "alerting_args": _LOGGING,
    "allow_client_side_credentials": "a client can't choose the upstream's address or key",
    "enforced_params": "Velox asks for no fields of a body",
    "reject_clientside_metadata_tags": "tags are in the header x-velox-tag: let a route ask for keys, too (match.keys)",
    "litellm_license": "Velox has none",
    "completion_model": "a route without match.models takes requests that name no model, but none is put into a body",
    "infer_model_from_keys": "name each model",
    "enforce_user_param": "Velox asks for no `user`",
    "role_permissions": _DATABASE,
    "spend_logs_row_limit": _DATABASE,
}
_TOP: Final[Mapping[str, str]] = {
    "include": "other files are not read: put them into one first",
    "guardrails": _GUARD,
    "mcp_servers": "Velox speaks no MCP",
    "callback_settings": _LOGGING,
    "files_settings": "Velox passes /v1/files on as any path: give it a route with match.paths",
    "finetune_settings": "Velox passes /v1/fine_tuning on as any path: give it a route with match.paths",
    "vector_store_registry": "Velox changes no prompts",
    "search_tools": "Velox calls no tools",
    "prompts": "Velox changes no prompts",
    "assistant_settings": "Velox passes /v1/assistants on as any path",
    "cache": _CACHE,
}
_SECTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "": _TOP,
    "router_settings": _ROUTER,
    "litellm_settings": _LIBRARY,
    "general_settings": _SERVER,
    "model_info": _MODEL_INFO,
}
# What many settings have in common, by a part of their names.
_BY_PART: Final = (
    ("cost", _PRICE),
    ("budget", _BUDGET),
    ("spend", "with VELOX_LEDGER Velox records each call and its cost: `velox usage` (docs/ledger.md)"),
    ("callback", _LOGGING),
    ("langfuse", _LOGGING),
    ("database", _DATABASE),
    ("_db_", _DATABASE),
    ("proxy_batch_write", _DATABASE),
    ("redis", _REDIS),
    ("cache", _CACHE),
    ("ui_", "Velox has no user interface"),
    ("supports_", "Velox passes on what a client asks for, and does not ask what a model can do"),
    ("aws_", "only Bedrock is asked with AWS credentials, which stand where Velox runs"),
    ("vertex_", "only Vertex AI is asked with Google's credentials, which stand where Velox runs"),
    ("mcp", "Velox speaks no MCP"),
)


def section_setting(section: str) -> Callable[[str], str]:
    """Return what tells a setting of a section's meaning. section: "" for the file itself."""
    return lambda key: _meaning(_SECTIONS[section], key)


def deployment_setting(key: str) -> str:
    """Tell what a field of litellm_params means."""
    return _meaning(_DEPLOYMENT, key)


def _meaning(table: Mapping[str, str], key: str) -> str:
    return table.get(key) or next((text for part, text in _BY_PART if part in key), _UNKNOWN)
