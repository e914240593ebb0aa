"""Readers and writers of the APIs that clients and models speak, and the canonical model between them.

One package for each dialect: `chat` and `responses` (OpenAI), `messages` (Anthropic), `generate` (Gemini), `converse`
(Bedrock; models only). Each has the same file names, as far as the dialect has the thing:

    wire            Structs of msgspec: fields and their types as they stand in bodies. No logic.
    words           What the dialect's words mean, both ways: stop reasons, usage, tiers, errors, ids.
    read_request    Client's side. A body of a client becomes a canonical `Request`.
    write_reply     Client's side. A canonical `Answer` or `ApiError` becomes a body. Its class (`ChatClient`) is the
                    dialect's `ClientSide`: it also reads the request, and makes the writer of a stream.
    write_stream    Client's side. Canonical events become what a client's stream has, one call for each event.
    write_request   Model's side. A canonical `Request` becomes a body for one attempt at one model.
    read_reply      Model's side. A body of a model becomes a canonical `Answer`. Its class (`ChatModel`, ...) is the
                    dialect's `ModelSide`: it also writes the request, and makes the reader of a stream.
    read_stream     Model's side. Bytes of a model's stream become canonical events, however they are cut.

`sources` has the pages of the web that an answer cites. Other files have what only that dialect has: `converse.frames`,
`generate.schema`, `responses.kept`; tests/arch/test_dialect_files.py lists them. A field that is new in a dialect goes
into its wire and into one reader or writer; what it means for other dialects goes into `canonical.model` first.

What belongs to no dialect:

    canonical       the model of requests, answers and events; errors and dropped fields; names, signatures
    json_text       JSON strings that are never decoded, decoding, halves of surrogate pairs
    streams         events of a stream: order of blocks, whole answers as events and back
    tools           tools and JSON schemas as targets take them, arguments of calls
    media           pictures, files, documents
    facts           what is known of a model (`ModelFacts`) and of a provider (`ProviderTraits`); limits and efforts
    openai_errors   errors of OpenAI's API, which Chat Completions and Responses share
    cache_marks     cache marks for Claude where a client of another dialect sends none
    counting        counting the tokens of a request, across dialects
    embeddings      embeddings across APIs
    as_sent         bodies that go up in the client's own dialect, without translation: what the target refuses or names
                    else. It may know all dialects; none of them knows it.

To add a dialect: write its package, add its classes to `dialect_table()` (runtime/upstreams/dialects.py), and add it
to tests/unit/dialects/test_matrix.py and test_snapshots.py, which take each pair of dialects.
"""
