-- Version 2: what a search costs tells nothing of others' words.
--
-- The indexes of words are one for all users, and whoever may EXPLAIN a search sees how many of their
-- pages it read. So every key in them begins with a sign of its owner, and the functions that search
-- put the caller's sign before whatever is asked for: no search comes near another's keys. A column of
-- text has no statistics, whose samples a planner's estimate would give away.

CREATE FUNCTION hermes.sign(owner text) RETURNS text
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT pg_catalog.left(pg_catalog.translate(pg_catalog.encode(
        pg_catalog.sha256(pg_catalog.convert_to(owner, 'UTF8')), 'base64'), '+/', '-_'), 6)
$$;

-- The parts of three characters that a word has, each with its owner's sign.
CREATE FUNCTION hermes.parts(owner text, word text) RETURNS text[]
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT pg_catalog.array_agg(DISTINCT
        pg_catalog.concat(hermes.sign(owner), pg_catalog.substr(word, n, 3)))
    FROM pg_catalog.generate_series(1, greatest(pg_catalog.length(word), 3)) AS n
$$;

DROP FUNCTION hermes.found, hermes.words_with;
DROP INDEX hermes.search_words, hermes.words_by_parts;

-- A kernel of an earlier version that is still connected cannot write under the old name.
ALTER TABLE hermes.search RENAME words TO terms;
ALTER TABLE hermes.search NO FORCE ROW LEVEL SECURITY;
UPDATE hermes.search SET terms = regexp_replace(
    -- A lexeme takes four bytes more, which places take at least: 1 MB is the most there may be.
    (CASE WHEN pg_column_size(terms) + 4 * length(terms) > 1000000 THEN strip(terms) ELSE terms END)::text,
    $r$'..((?:[^'\\]|''|\\\\)*)'$r$, $q$'$q$ || hermes.sign(owner) || $q$\1'$q$, 'g')::tsvector;
ALTER TABLE hermes.search FORCE ROW LEVEL SECURITY;
CREATE INDEX search_terms ON hermes.search USING gin (terms);
CREATE INDEX words_by_parts ON hermes.words USING gin (hermes.parts(owner, word));

-- How many messages of the caller's match, and the numbers of the newest `most`, with commas.
CREATE FUNCTION hermes.found(
    match tsquery, most integer, first bigint, last bigint, without bigint[], roles integer[]
) RETURNS TABLE (many bigint, numbers text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    WITH own AS (
        SELECT regexp_replace(match::text, $r$'((?:[^'\\]|''|\\\\)*)'$r$,
            $q$'$q$ || hermes.sign(session_user::text) || $q$\1'$q$, 'g')::tsquery AS match
    ), mine AS (
        -- In all sessions by the index of words alone: to look up whose they are takes longer.
        SELECT s.number FROM hermes.search s
        WHERE first = 0 AND s.terms @@ (SELECT own.match FROM own)
            AND s.owner || '' = session_user::text
        UNION ALL
        SELECT s.number FROM hermes.search s
        WHERE first > 0 AND s.terms @@ (SELECT own.match FROM own)
            AND s.owner = session_user::text AND s.number BETWEEN first AND last
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
    WITH found AS (
        SELECT w.word,
            (SELECT count(*) FROM unnest(parts) AS part WHERE strpos(w.word, part) > 0) AS n
        FROM hermes.words w
        WHERE hermes.parts(w.owner, w.word) && ARRAY(
                SELECT hermes.sign(session_user::text) || left(part, 3) FROM unnest(parts) AS part)
            AND w.owner = session_user::text AND left(w.word, 1) <> U&'\00a7'
    )
    SELECT f.word, f.n FROM found f WHERE f.n > 0
    ORDER BY f.n DESC, abs(length(f.word) - size), f.word LIMIT most
$$;

DO $$
DECLARE
    each record;
BEGIN
    FOR each IN SELECT a.attrelid::regclass AS table, a.attname AS name,
            format_type(a.atttypid, a.atttypmod)
            || CASE WHEN a.attcollation = '"C"'::regcollation THEN ' COLLATE "C"' ELSE '' END AS type
        FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
        WHERE c.relnamespace = 'hermes'::regnamespace AND c.relkind = 'r' AND a.attnum > 0
            AND a.atttypid IN ('text'::regtype, 'tsvector'::regtype) AND NOT a.attisdropped
            AND a.attname NOT IN ('owner', 'role', 'state')
    LOOP
        -- A type, though it is the same, takes the statistics away that are there.
        EXECUTE format('ALTER TABLE %s ALTER COLUMN %I TYPE %s', each.table, each.name, each.type);
        EXECUTE format('ALTER TABLE %s ALTER COLUMN %I SET STATISTICS 0', each.table, each.name);
    END LOOP;
END
$$;
ALTER INDEX hermes.words_by_parts ALTER COLUMN 1 SET STATISTICS 0;
REVOKE ALL ON FUNCTION hermes.found, hermes.words_with FROM PUBLIC;
GRANT EXECUTE ON FUNCTION hermes.found, hermes.words_with TO hermes_users;
