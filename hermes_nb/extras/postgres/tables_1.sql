-- The tables of the shared session store: what `jupyter hermes store init` runs, once, as their owner.
--
-- Whose a row is says `owner`, the role that logged in. Row-level security holds for every table and
-- for its owner too; a user's role has what `hermes_users` has. Nothing is found by a key without the
-- owner in it, so that neither a violated key nor a foreign one tells of another's rows.
--
-- The database may use an index for what row-level security leaves over only where an operator is
-- declared to leak nothing, and those of text search are not. So two functions read the two tables
-- of the search with the rights of their owner; each asks for the caller's rows alone.

CREATE EXTENSION IF NOT EXISTS pg_trgm;
CREATE SCHEMA hermes;
CREATE TABLE hermes.version (version integer NOT NULL);
INSERT INTO hermes.version VALUES (0);

-- Of sessions and messages together, so that the greatest number of a session says when it was
-- written to last, whatever the clocks did.
CREATE SEQUENCE hermes.numbers;

CREATE TABLE hermes.sessions (
    owner text COLLATE "C" NOT NULL DEFAULT session_user,
    number bigint NOT NULL DEFAULT nextval('hermes.numbers'),
    begun bigint NOT NULL DEFAULT nextval('hermes.numbers'),  -- its place as long as it is empty
    id text COLLATE "C" NOT NULL,
    parent bigint,
    title text NOT NULL,
    source text NOT NULL,
    notebook text COLLATE "C" NOT NULL,
    model text NOT NULL,
    system_prompt text NOT NULL,  -- as JSON, since a prompt may hold NUL
    started double precision NOT NULL,
    ended double precision,
    tokens_in bigint NOT NULL DEFAULT 0,
    tokens_out bigint NOT NULL DEFAULT 0,
    tokens_cached bigint NOT NULL DEFAULT 0,
    tokens_written bigint NOT NULL DEFAULT 0,
    tokens_reasoning bigint NOT NULL DEFAULT 0,
    requests bigint NOT NULL DEFAULT 0,
    cost double precision,
    PRIMARY KEY (owner, number),
    UNIQUE (owner, id)
);
CREATE INDEX sessions_of_a_notebook ON hermes.sessions (owner, notebook);
CREATE INDEX sessions_by_parent ON hermes.sessions (owner, parent) WHERE parent IS NOT NULL;

CREATE TABLE hermes.messages (
    owner text COLLATE "C" NOT NULL DEFAULT session_user,
    session bigint NOT NULL,
    position integer NOT NULL CHECK (position >= 0),
    number bigint NOT NULL DEFAULT nextval('hermes.numbers'),
    role text NOT NULL,
    body text NOT NULL,
    at double precision NOT NULL,
    state text NOT NULL DEFAULT 'active' CHECK (state IN ('active', 'compressed', 'undone')),
    PRIMARY KEY (owner, session, position),
    FOREIGN KEY (owner, session) REFERENCES hermes.sessions (owner, number) ON DELETE CASCADE
);
CREATE INDEX messages_set_aside ON hermes.messages (owner, session) WHERE state <> 'active';

CREATE TABLE hermes.arrangements (
    owner text COLLATE "C" NOT NULL DEFAULT session_user,
    session bigint NOT NULL,
    number bigint NOT NULL DEFAULT nextval('hermes.numbers'),
    start integer NOT NULL,
    stop integer NOT NULL,
    positions text NOT NULL,
    prompt_before text,
    at double precision NOT NULL,
    PRIMARY KEY (owner, session, number),
    FOREIGN KEY (owner, session) REFERENCES hermes.sessions (owner, number) ON DELETE CASCADE
);

-- A message by what it says. Its number holds the session, the block of positions, the place in the
-- block, the role and the class of length, as in the index on SQLite. Long texts lie apart: a search
-- reads numbers by the thousand, and the words themselves only for phrases.
CREATE TABLE hermes.search (
    owner text COLLATE "C" NOT NULL DEFAULT session_user,
    number bigint NOT NULL,
    words tsvector NOT NULL,
    PRIMARY KEY (owner, number)
) WITH (toast_tuple_target = 128);
ALTER TABLE hermes.search ALTER COLUMN words SET STORAGE EXTERNAL;
CREATE INDEX search_words ON hermes.search USING gin (words);

CREATE TABLE hermes.words (
    owner text COLLATE "C" NOT NULL DEFAULT session_user,
    word text COLLATE "C" NOT NULL,
    PRIMARY KEY (owner, word)
);
CREATE INDEX words_by_parts ON hermes.words USING gin (word gin_trgm_ops);

-- How many messages of the caller's match, and the numbers of the newest `most`, with commas.
CREATE FUNCTION hermes.found(
    match tsquery, most integer, first bigint, last bigint, without bigint[], roles integer[]
) RETURNS TABLE (many bigint, numbers text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    WITH mine AS (
        -- In all sessions by the index of words alone: to look up whose they are takes longer.
        SELECT s.number FROM hermes.search s
        WHERE first = 0 AND s.words @@ match AND s.owner || '' = session_user::text
        UNION ALL
        SELECT s.number FROM hermes.search s
        WHERE first > 0 AND s.words @@ match AND s.owner = session_user::text
            AND s.number BETWEEN first AND last
    ), hits AS MATERIALIZED (
        SELECT m.number FROM mine m
        WHERE NOT (m.number >> 25) = ANY (without)
            AND (cardinality(roles) = 0 OR (m.number >> 3 & 3)::integer = ANY (roles))
    )
    SELECT (SELECT count(*) FROM hits),
        (SELECT string_agg(newest.number::text, ',') FROM
            (SELECT h.number FROM hits h ORDER BY h.number DESC LIMIT most) AS newest)
$$;

-- The caller's words that contain most of some parts, and how many; then those about so long.
CREATE FUNCTION hermes.words_with(parts text[], size integer, most integer)
RETURNS TABLE (word text, shared bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT w.word, (SELECT count(*) FROM unnest(parts) AS part WHERE strpos(w.word, part) > 0) AS n
    FROM hermes.words w
    WHERE w.word LIKE ANY (ARRAY(SELECT '%' || part || '%' FROM unnest(parts) AS part))
        AND w.owner = session_user::text AND left(w.word, 1) <> U&'\00a7'
    ORDER BY n DESC, abs(length(w.word) - size), w.word LIMIT most
$$;

DO $$
DECLARE
    each text;
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'hermes_users') THEN
        CREATE ROLE hermes_users NOLOGIN;
    END IF;
    FOREACH each IN ARRAY ARRAY['sessions', 'messages', 'arrangements', 'search', 'words'] LOOP
        EXECUTE format('ALTER TABLE hermes.%I ENABLE ROW LEVEL SECURITY', each);
        EXECUTE format('ALTER TABLE hermes.%I FORCE ROW LEVEL SECURITY', each);
        EXECUTE format('CREATE POLICY own ON hermes.%I USING (owner = session_user::text)', each);
        EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON hermes.%I TO hermes_users', each);
    END LOOP;
END
$$;
CREATE POLICY found ON hermes.search FOR SELECT TO CURRENT_USER USING (true);
CREATE POLICY found ON hermes.words FOR SELECT TO CURRENT_USER USING (true);
GRANT USAGE ON SCHEMA hermes TO hermes_users;
GRANT USAGE ON SEQUENCE hermes.numbers TO hermes_users;
GRANT SELECT ON hermes.version TO hermes_users;
REVOKE ALL ON FUNCTION hermes.found, hermes.words_with FROM PUBLIC;
GRANT EXECUTE ON FUNCTION hermes.found, hermes.words_with TO hermes_users;
