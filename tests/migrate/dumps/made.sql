-- LiteLLM's tables that `velox import litellm-db` reads, and data made up for tests. The dumps beside it were made from
-- this file by pg_dump 15: copy.sql as it is, inserts.sql with --rows-per-insert=2 (no names of columns).
-- Keys: sk-shop-0123456789abcdef, sk-lab-0123456789abcdefg,
-- sk-rotated-0123456789abc (before:
-- sk-before-0123456789abcd), sk-spent-0123456789abcde.
CREATE TABLE "LiteLLM_BudgetTable" (
    budget_id text PRIMARY KEY, max_budget double precision, soft_budget double precision, max_parallel_requests integer,
    tpm_limit bigint, rpm_limit bigint, model_max_budget jsonb, budget_duration text, budget_reset_at timestamp(3));
CREATE TABLE "LiteLLM_OrganizationTable" (
    organization_id text PRIMARY KEY, organization_alias text NOT NULL, budget_id text NOT NULL,
    metadata jsonb NOT NULL DEFAULT '{}', models text[], spend double precision NOT NULL DEFAULT 0);
CREATE TABLE "LiteLLM_TeamTable" (
    team_id text PRIMARY KEY, team_alias text, organization_id text, object_permission_id text, admins text[],
    members text[], members_with_roles jsonb NOT NULL DEFAULT '{}', metadata jsonb NOT NULL DEFAULT '{}',
    max_budget double precision, soft_budget double precision, spend double precision NOT NULL DEFAULT 0, models text[],
    max_parallel_requests integer, tpm_limit bigint, rpm_limit bigint, budget_duration text,
    budget_reset_at timestamp(3), blocked boolean NOT NULL DEFAULT false,
    created_at timestamp(3) NOT NULL DEFAULT '2026-01-05 10:00:00', model_max_budget jsonb NOT NULL DEFAULT '{}');
CREATE TABLE "LiteLLM_UserTable" (
    user_id text PRIMARY KEY, user_alias text, password text, user_role text, max_budget double precision,
    spend double precision NOT NULL DEFAULT 0, user_email text, models text[], metadata jsonb NOT NULL DEFAULT '{}',
    max_parallel_requests integer, tpm_limit bigint, rpm_limit bigint, budget_duration text,
    budget_reset_at timestamp(3), model_max_budget jsonb NOT NULL DEFAULT '{}',
    created_at timestamp(3) DEFAULT '2026-01-05 10:00:00');
CREATE TABLE "LiteLLM_VerificationToken" (
    token text PRIMARY KEY, key_name text, key_alias text, spend double precision NOT NULL DEFAULT 0,
    expires timestamp(3), models text[], aliases jsonb NOT NULL DEFAULT '{}', config jsonb NOT NULL DEFAULT '{}',
    user_id text, team_id text, permissions jsonb NOT NULL DEFAULT '{}', max_parallel_requests integer,
    metadata jsonb NOT NULL DEFAULT '{}', blocked boolean, tpm_limit bigint, rpm_limit bigint,
    max_budget double precision, budget_duration text, budget_reset_at timestamp(3),
    allowed_cache_controls text[] DEFAULT '{}', allowed_routes text[] DEFAULT '{}',
    model_max_budget jsonb NOT NULL DEFAULT '{}', budget_id text, organization_id text, object_permission_id text,
    created_at timestamp(3) DEFAULT '2026-02-01 08:00:00', budget_limits jsonb);
CREATE TABLE "LiteLLM_DeprecatedVerificationToken" (
    id text PRIMARY KEY, token text NOT NULL, active_token_id text NOT NULL, revoke_at timestamp(3) NOT NULL);
CREATE TABLE "LiteLLM_DeletedVerificationToken" (
    id text PRIMARY KEY, token text NOT NULL, key_alias text, user_id text, team_id text,
    deleted_at timestamp(3) NOT NULL);
CREATE TABLE "LiteLLM_TeamMembership" (
    user_id text, team_id text, spend double precision NOT NULL DEFAULT 0, budget_id text,
    PRIMARY KEY (user_id, team_id));
CREATE TABLE "LiteLLM_DailyUserSpend" (
    id text PRIMARY KEY, user_id text, date text NOT NULL, api_key text NOT NULL, model text, model_group text,
    custom_llm_provider text, prompt_tokens bigint NOT NULL DEFAULT 0, completion_tokens bigint NOT NULL DEFAULT 0,
    cache_read_input_tokens bigint NOT NULL DEFAULT 0, cache_creation_input_tokens bigint NOT NULL DEFAULT 0,
    spend double precision NOT NULL DEFAULT 0, api_requests bigint NOT NULL DEFAULT 0,
    successful_requests bigint NOT NULL DEFAULT 0, failed_requests bigint NOT NULL DEFAULT 0);
CREATE TABLE "LiteLLM_SpendLogs" (
    request_id text PRIMARY KEY, call_type text NOT NULL, api_key text NOT NULL DEFAULT '',
    spend double precision NOT NULL DEFAULT 0, total_tokens integer NOT NULL DEFAULT 0,
    prompt_tokens integer NOT NULL DEFAULT 0, completion_tokens integer NOT NULL DEFAULT 0,
    "startTime" timestamp(3) NOT NULL, "endTime" timestamp(3) NOT NULL, model text NOT NULL DEFAULT '',
    model_group text DEFAULT '', "user" text DEFAULT '', team_id text, messages jsonb DEFAULT '{}', status text);
CREATE TABLE "LiteLLM_AuditLog" (id text PRIMARY KEY, updated_values jsonb);

INSERT INTO "LiteLLM_BudgetTable" (budget_id, max_budget, budget_duration, rpm_limit, soft_budget) VALUES
    ('b-lab', 5, '24h', 60, 4), ('b-member', 2.5, '7d', NULL, NULL), ('b-org', NULL, NULL, NULL, NULL);
INSERT INTO "LiteLLM_OrganizationTable" (organization_id, organization_alias, budget_id, models) VALUES
    ('org-1', 'All of us', 'b-org', '{}');
INSERT INTO "LiteLLM_TeamTable"
    (team_id, team_alias, organization_id, max_budget, budget_duration, budget_reset_at, models, tpm_limit, spend,
     metadata) VALUES
    ('shop', 'Web shop', 'org-1', 500, '30d', '2026-12-01 00:00:00', '{gpt-4o,gpt-4o-mini,"claude-*"}', 200000, 41.25,
     '{"cost_center": "a\\b ''quoted''"}'),
    ('9f2c6c1e-6f0e-4f0e-8d0a-0c8f6c1e2b11', NULL, NULL, NULL, NULL, NULL, '{}', NULL, 0, '{}');
INSERT INTO "LiteLLM_UserTable"
    (user_id, user_alias, user_email, user_role, models, password, max_budget, budget_duration, budget_reset_at, spend)
    VALUES
    ('ada@example.com', 'Ada', 'ada@example.com', 'internal_user', '{gpt-4o}', 'scrypt:secret', NULL, NULL, NULL, 1.5),
    ('auth0|5f7c', 'Bob', NULL, 'proxy_admin', '{no-default-models}', NULL, 20, '10d', '2026-11-28 00:00:00', 0),
    ('default_user_id', NULL, NULL, 'proxy_admin', '{}', NULL, NULL, NULL, NULL, 0);
INSERT INTO "LiteLLM_VerificationToken"
    (token, key_name, key_alias, models, user_id, team_id, metadata, blocked, rpm_limit, tpm_limit, max_budget,
     budget_duration, budget_reset_at, budget_id, spend, expires, max_parallel_requests, aliases, allowed_routes) VALUES
    (encode(sha256('sk-shop-0123456789abcdef'), 'hex'), 'sk-...cdef', 'shop frontend', '{gpt-4o,gpt-4o-mini}',
     'auth0|5f7c', 'shop', '{"tags": ["prod", "web"], "owner": "x\ty"}', NULL, 600, NULL, 100, '30d',
     '2026-12-01 00:00:00', NULL, 40.25, NULL, 20, '{"fast": "gpt-4o-mini"}', '{}'),
    (encode(sha256('sk-lab-0123456789abcdefg'), 'hex'), 'sk-...defg', 'lab', '{}', 'ada@example.com', NULL, '{}', false,
     NULL, 50000, NULL, NULL, NULL, 'b-lab', 1.5, '2096-06-30 12:00:00', NULL, '{}', '{/chat/completions}'),
    (encode(sha256('sk-rotated-0123456789abc'), 'hex'), 'sk-...9abc', 'rotated', '{all-team-models}', NULL, 'shop', '{}',
     true, NULL, NULL, NULL, NULL, NULL, NULL, 0.5, NULL, NULL, '{}', '{}'),
    (encode(sha256('sk-member'), 'hex'), 'sk-...mber', 'member', '{}', 'ada@example.com', 'shop', '{}', NULL, NULL, NULL,
     NULL, NULL, NULL, NULL, 0, NULL, NULL, '{}', '{}'),
    (encode(sha256('sk-spent-0123456789abcde'), 'hex'), 'sk-...bcde', 'spent', '{}', NULL, NULL, '{}', NULL, NULL, NULL, 1,
     NULL, NULL, NULL, 1.25, NULL, NULL, '{}', '{}'),
    (encode(sha256('sk-old'), 'hex'), 'sk-...-old', 'old', '{}', NULL, NULL, '{}', NULL, NULL, NULL, NULL, NULL, NULL,
     NULL, 0.125, '2026-03-01 00:00:00', NULL, '{}', '{}'),
    (encode(sha256('sk-session'), 'hex'), 'sk-...sion', NULL, '{}', 'default_user_id', 'litellm-dashboard', '{}', NULL,
     NULL, NULL, 1, NULL, NULL, NULL, 0, '2026-11-24 00:00:00', NULL, '{}', '{}');
INSERT INTO "LiteLLM_DeprecatedVerificationToken" VALUES
    ('d1', encode(sha256('sk-before-0123456789abcd'), 'hex'), encode(sha256('sk-rotated-0123456789abc'), 'hex'),
     '2027-01-01 00:00:00');
INSERT INTO "LiteLLM_DeletedVerificationToken" VALUES
    ('g1', encode(sha256('sk-gone'), 'hex'), 'gone', NULL, 'shop', '2026-11-10 00:00:00');
INSERT INTO "LiteLLM_TeamMembership" (user_id, team_id, budget_id) VALUES ('ada@example.com', 'shop', 'b-member');
INSERT INTO "LiteLLM_DailyUserSpend"
    (id, user_id, date, api_key, model, model_group, custom_llm_provider, prompt_tokens, completion_tokens, spend,
     api_requests, failed_requests) VALUES
    ('1', 'auth0|5f7c', '2026-11-02', encode(sha256('sk-shop-0123456789abcdef'), 'hex'), 'gpt-4o-2024-11-20', 'gpt-4o',
     'openai', 1000000, 2000, 30.1, 900, 3),
    ('2', 'auth0|5f7c', '2026-11-02', encode(sha256('sk-shop-0123456789abcdef'), 'hex'), 'gpt-4o-2024-11-20', 'gpt-4o',
     'azure', 100, 20, 0.15, 1, 0),
    ('3', 'ada@example.com', '2026-11-20', encode(sha256('sk-lab-0123456789abcdefg'), 'hex'), 'gpt-4o', 'gpt-4o',
     'openai', 5000, 50, 1.5, 12, 0),
    ('4', NULL, '2026-11-05', encode(sha256('sk-gone'), 'hex'), 'gpt-4o-mini', NULL, 'openai', 12, 0, 0.00000024, 1, 0);
INSERT INTO "LiteLLM_SpendLogs"
    (request_id, call_type, api_key, spend, prompt_tokens, completion_tokens, "startTime", "endTime", model, model_group,
     "user", team_id, messages, status) VALUES
    ('r1', 'acompletion', encode(sha256('sk-shop-0123456789abcdef'), 'hex'), 30.1, 1000000, 2000, '2026-11-02 10:00:00',
     '2026-11-02 10:00:01', 'gpt-4o', 'gpt-4o', 'auth0|5f7c', 'shop', '{}', 'success'),
    ('r2', 'acompletion', encode(sha256('sk-shop-0123456789abcdef'), 'hex'), 2, 700, 7, '2026-11-03 10:00:00',
     '2026-11-03 10:00:01', 'gpt-4o', 'gpt-4o', 'auth0|5f7c', 'shop',
     '{"content": "it''s; \nCOPY public.\"LiteLLM_VerificationToken\" (token) FROM stdin;\n\\.\n"}', 'failure');
INSERT INTO "LiteLLM_AuditLog" VALUES
    ('a1', '{"text": "--\nINSERT INTO public.\"LiteLLM_VerificationToken\" VALUES (''x'');\n"}');
CREATE FUNCTION apostrophes() RETURNS text LANGUAGE sql AS $$ SELECT 'it''s' -- isn't
$$;
