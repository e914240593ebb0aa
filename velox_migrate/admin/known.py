"""The fields of keys, teams and users that LiteLLM has: any other is a slip of whoever wrote it.

Of LiteLLM 1.108: those of its requests and of what it answers, which scripts send back. A limit that is misspelt would
else be kept as a field without a meaning, and limit nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from velox.accounts.model import Kind
from velox.admin.api.call import ApiError

__all__ = ["KNOWN", "check_known"]

# Of all three kinds.
_COMMON: Final = frozenset(
    [
        "access_group_ids",
        "allowed_passthrough_routes",
        "allowed_vector_store_indexes",
        "blocked",
        "budget_duration",
        "budget_limits",
        "budget_reset_at",
        "created_at",
        "default_estimated_output_tokens",
        "default_estimated_output_tokens_per_model",
        "denied_passthrough_routes",
        "disable_global_guardrails",
        "guardrails",
        "litellm_changed_by",
        "max_budget",
        "max_parallel_requests",
        "mcp_rpm_limit",
        "metadata",
        "model_max_budget",
        "model_rpm_limit",
        "model_spend",
        "model_tpm_limit",
        "models",
        "object_permission",
        "object_permission_id",
        "organization_id",
        "policies",
        "prompts",
        "router_settings",
        "rpm_limit",
        "rpm_limit_type",
        "spend",
        "tags",
        "team_id",
        "tpd_limit",
        "tpm_limit",
        "tpm_limit_type",
        "updated_at",
    ]
)
_KEYS: Final = frozenset(
    [
        "agent_id",
        "aliases",
        "allowed_cache_controls",
        "allowed_routes",
        "auto_rotate",
        "budget_fallbacks",
        "budget_id",
        "config",
        "created_by",
        "duration",
        "enable_prompt_caching",
        "end_user_budget_id",
        "enforced_params",
        "expires",
        "grace_period",
        "key",
        "key_alias",
        "key_name",
        "key_rotation_at",
        "key_type",
        "last_active",
        "last_rotation_at",
        "litellm_budget_table",
        "new_key",
        "new_master_key",
        "org_id",
        "permissions",
        "project_id",
        "rotation_count",
        "rotation_interval",
        "send_invite_email",
        "settings_updated_at",
        "soft_budget",
        "soft_budget_cooldown",
        "tag_rpm_limit",
        "temp_budget_expiry",
        "temp_budget_increase",
        "throttle_on_budget_exceeded",
        "token",
        "token_id",
        "total_spend",
        "updated_by",
        "user_id",
    ]
)
_TEAMS: Final = frozenset(
    [
        "admins",
        "allow_team_guardrail_config",
        "default_team_member_models",
        "enforced_batch_output_expires_after",
        "enforced_file_expires_after",
        "litellm_model_table",
        "members",
        "members_with_roles",
        "model_aliases",
        "model_id",
        "require_trace_id",
        "secret_manager_settings",
        "soft_budget",
        "team_alias",
        "team_member_budget",
        "team_member_budget_duration",
        "team_member_key_duration",
        "team_member_model_max_budget",
        "team_member_permissions",
        "team_member_rpm_limit",
        "team_member_tpm_limit",
    ]
)
_USERS: Final = frozenset(
    [
        "agent_id",
        "aliases",
        "allowed_cache_controls",
        "allowed_routes",
        "auto_create_key",
        "budget_fallbacks",
        "budget_id",
        "config",
        "created_by",
        "duration",
        "enable_prompt_caching",
        "end_user_budget_id",
        "enforced_params",
        "expires",
        "key",
        "key_alias",
        "key_name",
        "key_type",
        "last_breach_check_at",
        "litellm_budget_table",
        "organization_memberships",
        "organizations",
        "password",
        "password_reset_required",
        "permissions",
        "project_id",
        "send_invite_email",
        "sso_user_id",
        "tag_rpm_limit",
        "teams",
        "throttle_on_budget_exceeded",
        "token",
        "token_id",
        "updated_by",
        "user_alias",
        "user_email",
        "user_id",
        "user_role",
    ]
)
KNOWN: Final[Mapping[Kind, frozenset[str]]] = {
    "key": _COMMON | _KEYS,
    "team": _COMMON | _TEAMS,
    "user": _COMMON | _USERS,
}


def check_known(kind: Kind, body: Mapping[str, Any]) -> None:
    """Refuse a field that LiteLLM has not. Raises ApiError, which names it."""
    for name in body:
        if name not in KNOWN[kind]:
            message = f"LiteLLM has no such field of a {kind}, so nothing was done; what is yours goes into metadata"
            raise ApiError(400, "invalid", message, name[:64])
