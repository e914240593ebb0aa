--
-- PostgreSQL database dump
--

\restrict wl9taVIwGASamoRVgjcn6vwPTG6rf8yHWl1nYUFPhbiOIIokJPdIXWUNYIo6Boz

-- Dumped from database version 15.18 (Debian 15.18-0+deb12u1)
-- Dumped by pg_dump version 15.18 (Debian 15.18-0+deb12u1)

SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;

--
-- Name: apostrophes(); Type: FUNCTION; Schema: public; Owner: -
--

CREATE FUNCTION public.apostrophes() RETURNS text
    LANGUAGE sql
    AS $$ SELECT 'it''s' -- isn't
$$;


SET default_tablespace = '';

SET default_table_access_method = heap;

--
-- Name: LiteLLM_AuditLog; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public."LiteLLM_AuditLog" (
    id text NOT NULL,
    updated_values jsonb
);


--
-- Name: LiteLLM_BudgetTable; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public."LiteLLM_BudgetTable" (
    budget_id text NOT NULL,
    max_budget double precision,
    soft_budget double precision,
    max_parallel_requests integer,
    tpm_limit bigint,
    rpm_limit bigint,
    model_max_budget jsonb,
    budget_duration text,
    budget_reset_at timestamp(3) without time zone
);


--
-- Name: LiteLLM_DailyUserSpend; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public."LiteLLM_DailyUserSpend" (
    id text NOT NULL,
    user_id text,
    date text NOT NULL,
    api_key text NOT NULL,
    model text,
    model_group text,
    custom_llm_provider text,
    prompt_tokens bigint DEFAULT 0 NOT NULL,
    completion_tokens bigint DEFAULT 0 NOT NULL,
    cache_read_input_tokens bigint DEFAULT 0 NOT NULL,
    cache_creation_input_tokens bigint DEFAULT 0 NOT NULL,
    spend double precision DEFAULT 0 NOT NULL,
    api_requests bigint DEFAULT 0 NOT NULL,
    successful_requests bigint DEFAULT 0 NOT NULL,
    failed_requests bigint DEFAULT 0 NOT NULL
);


--
-- Name: LiteLLM_DeletedVerificationToken; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public."LiteLLM_DeletedVerificationToken" (
    id text NOT NULL,
    token text NOT NULL,
    key_alias text,
    user_id text,
    team_id text,
    deleted_at timestamp(3) without time zone NOT NULL
);


--
-- Name: LiteLLM_DeprecatedVerificationToken; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public."LiteLLM_DeprecatedVerificationToken" (
    id text NOT NULL,
    token text NOT NULL,
    active_token_id text NOT NULL,
    revoke_at timestamp(3) without time zone NOT NULL
);


--
-- Name: LiteLLM_OrganizationTable; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public."LiteLLM_OrganizationTable" (
    organization_id text NOT NULL,
    organization_alias text NOT NULL,
    budget_id text NOT NULL,
    metadata jsonb DEFAULT '{}'::jsonb NOT NULL,
    models text[],
    spend double precision DEFAULT 0 NOT NULL
);


--
-- Name: LiteLLM_SpendLogs; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public."LiteLLM_SpendLogs" (
    request_id text NOT NULL,
    call_type text NOT NULL,
    api_key text DEFAULT ''::text NOT NULL,
    spend double precision DEFAULT 0 NOT NULL,
    total_tokens integer DEFAULT 0 NOT NULL,
    prompt_tokens integer DEFAULT 0 NOT NULL,
    completion_tokens integer DEFAULT 0 NOT NULL,
    "startTime" timestamp(3) without time zone NOT NULL,
    "endTime" timestamp(3) without time zone NOT NULL,
    model text DEFAULT ''::text NOT NULL,
    model_group text DEFAULT ''::text,
    "user" text DEFAULT ''::text,
    team_id text,
    messages jsonb DEFAULT '{}'::jsonb,
    status text
);


--
-- Name: LiteLLM_TeamMembership; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public."LiteLLM_TeamMembership" (
    user_id text NOT NULL,
    team_id text NOT NULL,
    spend double precision DEFAULT 0 NOT NULL,
    budget_id text
);


--
-- Name: LiteLLM_TeamTable; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public."LiteLLM_TeamTable" (
    team_id text NOT NULL,
    team_alias text,
    organization_id text,
    object_permission_id text,
    admins text[],
    members text[],
    members_with_roles jsonb DEFAULT '{}'::jsonb NOT NULL,
    metadata jsonb DEFAULT '{}'::jsonb NOT NULL,
    max_budget double precision,
    soft_budget double precision,
    spend double precision DEFAULT 0 NOT NULL,
    models text[],
    max_parallel_requests integer,
    tpm_limit bigint,
    rpm_limit bigint,
    budget_duration text,
    budget_reset_at timestamp(3) without time zone,
    blocked boolean DEFAULT false NOT NULL,
    created_at timestamp(3) without time zone DEFAULT '2026-01-05 10:00:00'::timestamp without time zone NOT NULL,
    model_max_budget jsonb DEFAULT '{}'::jsonb NOT NULL
);


--
-- Name: LiteLLM_UserTable; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public."LiteLLM_UserTable" (
    user_id text NOT NULL,
    user_alias text,
    password text,
    user_role text,
    max_budget double precision,
    spend double precision DEFAULT 0 NOT NULL,
    user_email text,
    models text[],
    metadata jsonb DEFAULT '{}'::jsonb NOT NULL,
    max_parallel_requests integer,
    tpm_limit bigint,
    rpm_limit bigint,
    budget_duration text,
    budget_reset_at timestamp(3) without time zone,
    model_max_budget jsonb DEFAULT '{}'::jsonb NOT NULL,
    created_at timestamp(3) without time zone DEFAULT '2026-01-05 10:00:00'::timestamp without time zone
);


--
-- Name: LiteLLM_VerificationToken; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public."LiteLLM_VerificationToken" (
    token text NOT NULL,
    key_name text,
    key_alias text,
    spend double precision DEFAULT 0 NOT NULL,
    expires timestamp(3) without time zone,
    models text[],
    aliases jsonb DEFAULT '{}'::jsonb NOT NULL,
    config jsonb DEFAULT '{}'::jsonb NOT NULL,
    user_id text,
    team_id text,
    permissions jsonb DEFAULT '{}'::jsonb NOT NULL,
    max_parallel_requests integer,
    metadata jsonb DEFAULT '{}'::jsonb NOT NULL,
    blocked boolean,
    tpm_limit bigint,
    rpm_limit bigint,
    max_budget double precision,
    budget_duration text,
    budget_reset_at timestamp(3) without time zone,
    allowed_cache_controls text[] DEFAULT '{}'::text[],
    allowed_routes text[] DEFAULT '{}'::text[],
    model_max_budget jsonb DEFAULT '{}'::jsonb NOT NULL,
    budget_id text,
    organization_id text,
    object_permission_id text,
    created_at timestamp(3) without time zone DEFAULT '2026-02-01 08:00:00'::timestamp without time zone,
    budget_limits jsonb
);


--
-- Data for Name: LiteLLM_AuditLog; Type: TABLE DATA; Schema: public; Owner: -
--

COPY public."LiteLLM_AuditLog" (id, updated_values) FROM stdin;
a1	{"text": "--\\nINSERT INTO public.\\"LiteLLM_VerificationToken\\" VALUES ('x');\\n"}
\.


--
-- Data for Name: LiteLLM_BudgetTable; Type: TABLE DATA; Schema: public; Owner: -
--

COPY public."LiteLLM_BudgetTable" (budget_id, max_budget, soft_budget, max_parallel_requests, tpm_limit, rpm_limit, model_max_budget, budget_duration, budget_reset_at) FROM stdin;
b-lab	5	4	\N	\N	60	\N	24h	\N
b-member	2.5	\N	\N	\N	\N	\N	7d	\N
b-org	\N	\N	\N	\N	\N	\N	\N	\N
\.


--
-- Data for Name: LiteLLM_DailyUserSpend; Type: TABLE DATA; Schema: public; Owner: -
--

COPY public."LiteLLM_DailyUserSpend" (id, user_id, date, api_key, model, model_group, custom_llm_provider, prompt_tokens, completion_tokens, cache_read_input_tokens, cache_creation_input_tokens, spend, api_requests, successful_requests, failed_requests) FROM stdin;
1	auth0|5f7c	2026-11-02	057eb0889599fc85d63e4e9125047a61d29bc81e5d7238920da1de9a0e9a8d4e	gpt-4o-2024-11-20	gpt-4o	openai	1000000	2000	0	0	30.1	900	0	3
2	auth0|5f7c	2026-11-02	057eb0889599fc85d63e4e9125047a61d29bc81e5d7238920da1de9a0e9a8d4e	gpt-4o-2024-11-20	gpt-4o	azure	100	20	0	0	0.15	1	0	0
3	ada@example.com	2026-11-20	f729f5e08157b56d4beef10357c0210cc6665bb3f7677e1c83825caaeec25f3c	gpt-4o	gpt-4o	openai	5000	50	0	0	1.5	12	0	0
4	\N	2026-11-05	43a368a4b3d7ac709875ee04a941420cbcbeb201d3b0423bc6f3537b180e9aab	gpt-4o-mini	\N	openai	12	0	0	0	2.4e-07	1	0	0
\.


--
-- Data for Name: LiteLLM_DeletedVerificationToken; Type: TABLE DATA; Schema: public; Owner: -
--

COPY public."LiteLLM_DeletedVerificationToken" (id, token, key_alias, user_id, team_id, deleted_at) FROM stdin;
g1	43a368a4b3d7ac709875ee04a941420cbcbeb201d3b0423bc6f3537b180e9aab	gone	\N	shop	2026-11-10 00:00:00
\.


--
-- Data for Name: LiteLLM_DeprecatedVerificationToken; Type: TABLE DATA; Schema: public; Owner: -
--

COPY public."LiteLLM_DeprecatedVerificationToken" (id, token, active_token_id, revoke_at) FROM stdin;
d1	eb69552d461669dcf307cda9522e24a0be7140a23f091ad3d339fefeb6a78cdc	5600b428eb68b24c0565980ca2cd988e2ce5bd9f54cbf504f5b9a76a5431da7e	2027-01-01 00:00:00
\.


--
-- Data for Name: LiteLLM_OrganizationTable; Type: TABLE DATA; Schema: public; Owner: -
--

COPY public."LiteLLM_OrganizationTable" (organization_id, organization_alias, budget_id, metadata, models, spend) FROM stdin;
org-1	All of us	b-org	{}	{}	0
\.


--
-- Data for Name: LiteLLM_SpendLogs; Type: TABLE DATA; Schema: public; Owner: -
--

COPY public."LiteLLM_SpendLogs" (request_id, call_type, api_key, spend, total_tokens, prompt_tokens, completion_tokens, "startTime", "endTime", model, model_group, "user", team_id, messages, status) FROM stdin;
r1	acompletion	057eb0889599fc85d63e4e9125047a61d29bc81e5d7238920da1de9a0e9a8d4e	30.1	0	1000000	2000	2026-11-02 10:00:00	2026-11-02 10:00:01	gpt-4o	gpt-4o	auth0|5f7c	shop	{}	success
r2	acompletion	057eb0889599fc85d63e4e9125047a61d29bc81e5d7238920da1de9a0e9a8d4e	2	0	700	7	2026-11-03 10:00:00	2026-11-03 10:00:01	gpt-4o	gpt-4o	auth0|5f7c	shop	{"content": "it's; \\nCOPY public.\\"LiteLLM_VerificationToken\\" (token) FROM stdin;\\n\\\\.\\n"}	failure
\.


--
-- Data for Name: LiteLLM_TeamMembership; Type: TABLE DATA; Schema: public; Owner: -
--

COPY public."LiteLLM_TeamMembership" (user_id, team_id, spend, budget_id) FROM stdin;
ada@example.com	shop	0	b-member
\.


--
-- Data for Name: LiteLLM_TeamTable; Type: TABLE DATA; Schema: public; Owner: -
--

COPY public."LiteLLM_TeamTable" (team_id, team_alias, organization_id, object_permission_id, admins, members, members_with_roles, metadata, max_budget, soft_budget, spend, models, max_parallel_requests, tpm_limit, rpm_limit, budget_duration, budget_reset_at, blocked, created_at, model_max_budget) FROM stdin;
shop	Web shop	org-1	\N	\N	\N	{}	{"cost_center": "a\\\\b 'quoted'"}	500	\N	41.25	{gpt-4o,gpt-4o-mini,claude-*}	\N	200000	\N	30d	2026-12-01 00:00:00	f	2026-01-05 10:00:00	{}
9f2c6c1e-6f0e-4f0e-8d0a-0c8f6c1e2b11	\N	\N	\N	\N	\N	{}	{}	\N	\N	0	{}	\N	\N	\N	\N	\N	f	2026-01-05 10:00:00	{}
\.


--
-- Data for Name: LiteLLM_UserTable; Type: TABLE DATA; Schema: public; Owner: -
--

COPY public."LiteLLM_UserTable" (user_id, user_alias, password, user_role, max_budget, spend, user_email, models, metadata, max_parallel_requests, tpm_limit, rpm_limit, budget_duration, budget_reset_at, model_max_budget, created_at) FROM stdin;
ada@example.com	Ada	scrypt:secret	internal_user	\N	1.5	ada@example.com	{gpt-4o}	{}	\N	\N	\N	\N	\N	{}	2026-01-05 10:00:00
auth0|5f7c	Bob	\N	proxy_admin	20	0	\N	{no-default-models}	{}	\N	\N	\N	10d	2026-11-28 00:00:00	{}	2026-01-05 10:00:00
default_user_id	\N	\N	proxy_admin	\N	0	\N	{}	{}	\N	\N	\N	\N	\N	{}	2026-01-05 10:00:00
\.


--
-- Data for Name: LiteLLM_VerificationToken; Type: TABLE DATA; Schema: public; Owner: -
--

COPY public."LiteLLM_VerificationToken" (token, key_name, key_alias, spend, expires, models, aliases, config, user_id, team_id, permissions, max_parallel_requests, metadata, blocked, tpm_limit, rpm_limit, max_budget, budget_duration, budget_reset_at, allowed_cache_controls, allowed_routes, model_max_budget, budget_id, organization_id, object_permission_id, created_at, budget_limits) FROM stdin;
057eb0889599fc85d63e4e9125047a61d29bc81e5d7238920da1de9a0e9a8d4e	sk-...cdef	shop frontend	40.25	\N	{gpt-4o,gpt-4o-mini}	{"fast": "gpt-4o-mini"}	{}	auth0|5f7c	shop	{}	20	{"tags": ["prod", "web"], "owner": "x\\ty"}	\N	\N	600	100	30d	2026-12-01 00:00:00	{}	{}	{}	\N	\N	\N	2026-02-01 08:00:00	\N
f729f5e08157b56d4beef10357c0210cc6665bb3f7677e1c83825caaeec25f3c	sk-...defg	lab	1.5	2096-06-30 12:00:00	{}	{}	{}	ada@example.com	\N	{}	\N	{}	f	50000	\N	\N	\N	\N	{}	{/chat/completions}	{}	b-lab	\N	\N	2026-02-01 08:00:00	\N
5600b428eb68b24c0565980ca2cd988e2ce5bd9f54cbf504f5b9a76a5431da7e	sk-...9abc	rotated	0.5	\N	{all-team-models}	{}	{}	\N	shop	{}	\N	{}	t	\N	\N	\N	\N	\N	{}	{}	{}	\N	\N	\N	2026-02-01 08:00:00	\N
8dde363009e8a74364260edb8f2009bb923b81172d80a144e277b0506ba5fb69	sk-...mber	member	0	\N	{}	{}	{}	ada@example.com	shop	{}	\N	{}	\N	\N	\N	\N	\N	\N	{}	{}	{}	\N	\N	\N	2026-02-01 08:00:00	\N
a6da26ced3eb01d3661c289e0400f6fac24bd9c2fe3b411069232b072312c0c6	sk-...bcde	spent	1.25	\N	{}	{}	{}	\N	\N	{}	\N	{}	\N	\N	\N	1	\N	\N	{}	{}	{}	\N	\N	\N	2026-02-01 08:00:00	\N
d3e64608f5182a4408eef248830800d9f4b82167cb91b4b193ac488aa1235fc9	sk-...-old	old	0.125	2026-03-01 00:00:00	{}	{}	{}	\N	\N	{}	\N	{}	\N	\N	\N	\N	\N	\N	{}	{}	{}	\N	\N	\N	2026-02-01 08:00:00	\N
7b80dd5fb78cb5412a5565c0cba985374a7126d1d66f90c00582acacc94b7aea	sk-...sion	\N	0	2026-11-24 00:00:00	{}	{}	{}	default_user_id	litellm-dashboard	{}	\N	{}	\N	\N	\N	1	\N	\N	{}	{}	{}	\N	\N	\N	2026-02-01 08:00:00	\N
\.


--
-- Name: LiteLLM_AuditLog LiteLLM_AuditLog_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public."LiteLLM_AuditLog"
    ADD CONSTRAINT "LiteLLM_AuditLog_pkey" PRIMARY KEY (id);


--
-- Name: LiteLLM_BudgetTable LiteLLM_BudgetTable_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public."LiteLLM_BudgetTable"
    ADD CONSTRAINT "LiteLLM_BudgetTable_pkey" PRIMARY KEY (budget_id);


--
-- Name: LiteLLM_DailyUserSpend LiteLLM_DailyUserSpend_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public."LiteLLM_DailyUserSpend"
    ADD CONSTRAINT "LiteLLM_DailyUserSpend_pkey" PRIMARY KEY (id);


--
-- Name: LiteLLM_DeletedVerificationToken LiteLLM_DeletedVerificationToken_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public."LiteLLM_DeletedVerificationToken"
    ADD CONSTRAINT "LiteLLM_DeletedVerificationToken_pkey" PRIMARY KEY (id);


--
-- Name: LiteLLM_DeprecatedVerificationToken LiteLLM_DeprecatedVerificationToken_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public."LiteLLM_DeprecatedVerificationToken"
    ADD CONSTRAINT "LiteLLM_DeprecatedVerificationToken_pkey" PRIMARY KEY (id);


--
-- Name: LiteLLM_OrganizationTable LiteLLM_OrganizationTable_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public."LiteLLM_OrganizationTable"
    ADD CONSTRAINT "LiteLLM_OrganizationTable_pkey" PRIMARY KEY (organization_id);


--
-- Name: LiteLLM_SpendLogs LiteLLM_SpendLogs_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public."LiteLLM_SpendLogs"
    ADD CONSTRAINT "LiteLLM_SpendLogs_pkey" PRIMARY KEY (request_id);


--
-- Name: LiteLLM_TeamMembership LiteLLM_TeamMembership_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public."LiteLLM_TeamMembership"
    ADD CONSTRAINT "LiteLLM_TeamMembership_pkey" PRIMARY KEY (user_id, team_id);


--
-- Name: LiteLLM_TeamTable LiteLLM_TeamTable_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public."LiteLLM_TeamTable"
    ADD CONSTRAINT "LiteLLM_TeamTable_pkey" PRIMARY KEY (team_id);


--
-- Name: LiteLLM_UserTable LiteLLM_UserTable_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public."LiteLLM_UserTable"
    ADD CONSTRAINT "LiteLLM_UserTable_pkey" PRIMARY KEY (user_id);


--
-- Name: LiteLLM_VerificationToken LiteLLM_VerificationToken_pkey; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public."LiteLLM_VerificationToken"
    ADD CONSTRAINT "LiteLLM_VerificationToken_pkey" PRIMARY KEY (token);


--
-- PostgreSQL database dump complete
--

\unrestrict wl9taVIwGASamoRVgjcn6vwPTG6rf8yHWl1nYUFPhbiOIIokJPdIXWUNYIo6Boz

