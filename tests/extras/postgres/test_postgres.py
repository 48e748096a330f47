"""What only the store on a server promises: whose rows are whose, versions, a way in and out."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace

import psycopg
import pytest
from hermes_nb.agent.session.stores import open_store
from hermes_nb.agent.settings.config import load_settings
from hermes_nb.cli.main import main
from hermes_nb.core.errors import ConfigError, SessionTakenError, StoreError
from hermes_nb.core.messages import Message, ToolCall, Usage
from hermes_nb.extras.postgres import store as module
from hermes_nb.extras.postgres import tsvector
from hermes_nb.extras.postgres.moving import InFile, move
from hermes_nb.extras.postgres.store import initialise
from hermes_nb.memory.rows import encode
from hermes_nb.memory.search import documents
from hermes_nb.memory.search.documents import document
from hermes_nb.memory.sessions import SqliteStore
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.docs.blocks import ROOT, blocks
from tests.extras.postgres.server import ADMIN, OWNER, PASSWORD
from tests.memory.test_store_contract import filled

SECRET = "zanzibar"


@pytest.fixture
def ada(postgres, tmp_path):
    store = postgres.store("ada", tmp_path)
    yield store
    store.close()


@pytest.fixture
def bob(postgres, tmp_path):
    store = postgres.store("bob", tmp_path)
    yield store
    store.close()


def test_nobody_has_anything_of_another_user(ada, bob):
    theirs = filled(ada, f"the {SECRET} papers", "answer", title=SECRET, notebook="/w/n.ipynb")
    child = ada.start(parent=theirs, title=SECRET)
    assert bob.sessions() == bob.rows(theirs) == bob.messages(theirs) == []
    assert bob.get(theirs) is None and bob.lineage(child) == [child]
    for query in (SECRET, "zanzi*", "anziba", "zanzibr", f'"the {SECRET}"', "NOT answer"):
        assert ada.search(query) and bob.search(query) == []
    bob.rename(theirs, "mine")
    bob.end(theirs)
    bob.rewind(theirs, 0)
    bob.relocate("/w/n.ipynb", "/elsewhere")
    bob.delete(theirs)
    bob.purge()
    assert bob.start(session_id=theirs, title="the same id") == theirs
    bob.append(theirs, Message.user("of my own"))
    assert [m.text for m in ada.messages(theirs)] == [f"the {SECRET} papers", "answer"]
    stored = ada.get(theirs)
    assert (stored.title, stored.notebook, stored.ended) == (SECRET, "/w/n.ipynb", None)
    assert [hit.session_id for hit in ada.search(SECRET)] == [theirs]
    assert [m.text for m in bob.messages(theirs)] == ["of my own"]


TABLES = ("sessions", "messages", "arrangements", "search", "words")
LEAK = (
    "CREATE FUNCTION pg_temp.leak(anything text) RETURNS boolean COST 0.0001 LANGUAGE plpgsql AS"
    " $$BEGIN RAISE NOTICE '%', anything; RETURN true; END$$"
)
LOOKS = [
    *(f"SELECT * FROM hermes.{table}" for table in TABLES),
    *(f"SELECT pg_temp.leak(t::text), t FROM hermes.{table} t WHERE pg_temp.leak(t::text)"
      for table in TABLES),
    *(f"COPY hermes.{table} TO STDOUT" for table in TABLES),
    *(f"DELETE FROM hermes.{table} RETURNING *" for table in TABLES),
    *(f"UPDATE hermes.{table} SET owner = 'bob' RETURNING *" for table in TABLES),
    *(f"UPDATE hermes.{table} SET owner = 'bob' WHERE owner = 'ada' RETURNING *"
      for table in TABLES),
    *(f"TRUNCATE hermes.{table}" for table in TABLES),
    *(f"ALTER TABLE hermes.{table} DISABLE ROW LEVEL SECURITY" for table in TABLES),
    *(f"ALTER TABLE hermes.{table} OWNER TO bob" for table in TABLES),
    *(f"CREATE POLICY mine ON hermes.{table} USING (true)" for table in TABLES),
    *(f"CREATE TRIGGER t BEFORE INSERT ON hermes.{table} EXECUTE FUNCTION pg_temp.leak()"
      for table in TABLES),
    "SELECT (hermes.found(('''' || s || 'zanzibar''')::tsquery, 99, 0, 9e18::bigint, '{}',"
    " '{}')).* FROM (VALUES ('%(sign)s')) AS v (s)",
    "SELECT * FROM hermes.found('!x'::tsquery, 99, 0, 1::bigint << 62, '{}', '{}')",
    "SELECT * FROM hermes.words_with(ARRAY['', 'zanz', '%%'], 8, 99)",
    "SELECT * FROM ts_stat('SELECT terms FROM hermes.search')",
    "SELECT most_common_vals::text, histogram_bounds::text FROM pg_stats",
    "SELECT * FROM pg_statistic",
    "SELECT query FROM pg_stat_activity",
    "SELECT * FROM hermes.messages m JOIN pg_class c ON m.session::text = c.oid::text",
    "INSERT INTO hermes.messages (owner, session, position, role, body, at)"
    " SELECT 'ada', number, 9, 'user', '{}', 0 FROM hermes.sessions",
    "INSERT INTO hermes.messages (owner, session, position, role, body, at)"
    " VALUES ('ada', %(number)s, 9, 'user', '{}', 0)",
    "INSERT INTO hermes.words (owner, word) VALUES ('ada', 'planted')",
    "INSERT INTO hermes.search (owner, number, terms) VALUES ('ada', 1, '')",
    "INSERT INTO hermes.sessions (owner, id, title, source, notebook, model, system_prompt,"
    " started) VALUES ('ada', 'x', '', '', '', '', '', 0)",
    "UPDATE hermes.version SET version = 99",
    "CREATE TABLE hermes.mine (a int)",
    "CREATE OR REPLACE FUNCTION hermes.words_with(parts text[], size int, most int) RETURNS TABLE"
    " (word text, shared bigint) LANGUAGE sql AS 'SELECT word, 1 FROM hermes.words'",
    "DROP SCHEMA hermes CASCADE",
    "SET row_security = off; SELECT * FROM hermes.messages",
    "SET ROLE ada; SELECT * FROM hermes.messages",
    f"SET ROLE {OWNER}; SELECT * FROM hermes.messages",
    "SET ROLE hermes_users; SELECT * FROM hermes.messages",
    "SET SESSION AUTHORIZATION ada; SELECT * FROM hermes.messages",
    "ALTER ROLE bob SUPERUSER",
    "GRANT ada TO bob",
    "CREATE VIEW pg_temp.whole AS SELECT * FROM hermes.messages; SELECT * FROM pg_temp.whole",
    "LISTEN hermes; SELECT lo_import('/etc/passwd')",
    "COPY (SELECT 1) TO PROGRAM 'id'",
]  # fmt: skip


def test_a_hostile_client_sees_and_changes_nothing_of_another_user(postgres, ada, bob):
    theirs = filled(ada, f"the {SECRET} papers", title=SECRET, system_prompt=SECRET)
    ada.replace(theirs, [Message.user(f"a summary of {SECRET}")], system_prompt="new")
    filled(bob, "of my own")
    postgres.sql("ANALYZE")
    before = [postgres.sql(f"SELECT * FROM hermes.{t} WHERE owner = 'ada'") for t in TABLES]
    assert SECRET in str(before) and all(before)
    number = postgres.sql("SELECT number FROM hermes.sessions WHERE owner = 'ada'")[0][0]
    known = {"sign": tsvector.sign_of("ada"), "number": number}
    told: list[str] = []
    with psycopg.connect(postgres.dsn("bob"), autocommit=True) as client:
        client.add_notice_handler(lambda notice: told.append(notice.message_primary))
        client.execute(LEAK)
        for look in LOOKS:
            asked = look % known if "%(" in look else look
            try:
                if look.startswith("COPY hermes"):
                    with client.cursor().copy(asked) as copied:
                        told += [bytes(part).decode() for part in copied]
                else:
                    cursor = client.execute(asked)
                    while cursor.nextset():
                        pass
                    told += map(str, cursor.fetchall() if cursor.description else [])
            except psycopg.Error as error:
                told.append(str(error))
            client.execute("RESET ROLE; RESET SESSION AUTHORIZATION; RESET row_security")
    assert not [line for line in told if SECRET in line.replace("zanzibar'''", "")]
    assert any("of my own" in line for line in told)  # it did look
    after = [postgres.sql(f"SELECT * FROM hermes.{t} WHERE owner = 'ada'") for t in TABLES]
    assert after == before
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(postgres.dsn("ada").replace(PASSWORD, "guessed"))


GUESSES = (SECRET, "zanzibax")
"""What ada has said often, and what nobody has."""
COSTS = [
    "SELECT * FROM hermes.found($$ASKED$$::tsquery, 99, 0, 0, '{}', '{}')",
    "SELECT * FROM hermes.found($$ASKED$$::tsquery, 99, 1, 1::bigint << 62, '{}', '{}')",
    "SELECT * FROM hermes.search WHERE terms @@ $$ASKED$$::tsquery",
    "SELECT ts_rank(terms, $$ASKED$$) FROM hermes.search WHERE terms @@ $$ASKED$$::tsquery",
]
QUERIES = ["'SAID'", "'SAID':*", "'SAID' & 'walrus'", "'walrus' | 'SAID':*", "!'SAID'"]
QUERIES += ["'the' <-> 'SAID'", "'SA' | 'SAID'", "'it''s' & 'SAID'", "'a\\\\' | 'SAID'"]
OF_WORDS = [
    "SELECT * FROM hermes.words_with(ARRAY['SAID'], 8, 99)",
    "SELECT * FROM hermes.words_with(ARRAY['SAID', 'wal'], 8, 99)",
    "SELECT * FROM hermes.words WHERE word = 'SAID'",
    "SELECT * FROM hermes.words WHERE word LIKE '%SAID%'",
    "SELECT * FROM hermes.words WHERE word > 'SAID'",
    "SELECT * FROM hermes.words WHERE hermes.parts(owner, word) && ARRAY['SAID', 'waxzan']",
    "SELECT * FROM hermes.sessions WHERE title = 'SAID'",
    "SELECT * FROM hermes.sessions WHERE notebook < 'SAID'",
    "SELECT * FROM hermes.messages WHERE body LIKE '%SAID%'",
]


def cost(client, query):
    """Return all that EXPLAIN says of a query once everything is in the server's memory."""
    for _ in range(3):
        told = client.execute(f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, SUMMARY OFF) {query}")
        lines = [line for (line,) in told.fetchall()]
    return [line for line in lines if "Filter: " not in line and "Cond: " not in line]


def test_what_a_search_costs_tells_nothing_of_others_words(postgres, ada, bob):
    for store, said in ((ada, f"the {SECRET} papers"), (bob, "a walrus and the carpenter")):
        for number in range(60):
            filled(store, f"{said} {number} " + "and more of it " * 20, title=said.split()[1])
    postgres.sql("VACUUM ANALYZE")
    kept = "SELECT attname FROM pg_stats WHERE schemaname = 'hermes' AND attname NOT IN"
    assert not {"terms", "word", "body", "title", "parts"} & {
        name for (name,) in postgres.sql(f"{kept} ('owner', 'number')")
    }
    forms = [form.replace("ASKED", query) for form in COSTS for query in QUERIES] + OF_WORDS
    with psycopg.connect(postgres.dsn("bob"), autocommit=True) as client:
        for form in forms:
            for sign in ("", tsvector.sign_of("ada"), tsvector.sign_of("bob")):
                there, not_there = (
                    cost(client, form.replace("SAID", sign + guess)) for guess in GUESSES
                )
                assert there == not_there, (form, sign)
    assert ada.search(SECRET) and ada.search("anziba") and ada.search("zanzibra")


def test_tables_of_the_first_version_are_brought_up_to_date(
    running_postgres, tmp_path, monkeypatch
):
    server = running_postgres
    server.database("older")
    url = server.url(OWNER, "older")
    with monkeypatch.context() as older:
        older.setattr(module, "STEPS", module.STEPS[:1])
        older.setattr(module, "VERSION", 1)
        assert initialise(url, PASSWORD) == "version 1, created"
    with psycopg.connect(server.dsn("ada", "older"), autocommit=True) as earlier:
        earlier.execute(
            "INSERT INTO hermes.sessions (id, title, source, notebook, model, system_prompt,"
            " started) VALUES ('20261127-000000-aaaaaa', 't', 'notebook', '', '', '\"\"', 1)"
        )
        (number,) = earlier.execute("SELECT number FROM hermes.sessions").fetchone()
        add = (
            "WITH a AS (INSERT INTO hermes.messages (session, position, role, body, at) VALUES"
            " (%s, %s, 'user', %s, 1)), b AS (INSERT INTO hermes.words (word) SELECT unnest(%s::"
            "text[]) ON CONFLICT DO NOTHING) INSERT INTO hermes.search (number, words) VALUES"
            " (%s, %s::tsvector)"
        )
        large = " ".join(f"w{n:06}" for n in range(49_000))
        for position, text in enumerate((f"the {SECRET} papers", "it's a \\ walrus", large)):
            body = encode(Message.user(text))
            made = documents.document(body, at=1.0, began=None)
            values = (number, position, body, tsvector.listed(made.forms))
            vector = tsvector.vector(made, "QX")
            earlier.execute(add, (*values, tsvector.number(made, number, position), vector))
        assert initialise(url, PASSWORD) == "version 2, created"
        with pytest.raises(psycopg.errors.UndefinedColumn):  # it would write what nobody finds
            earlier.execute(add, (*values[:1], 9, *values[2:], 9, vector))
    with closing(server.store("ada", tmp_path, "older")) as store:
        for query in (
            SECRET,
            "zanzi*",
            "anziba",
            "zanzibra",
            f'"the {SECRET}"',
            "walrus",
            "w000042",
        ):
            assert store.search(query), query
        store.append("20261127-000000-aaaaaa", Message.user("and a carpenter"))
        assert store.search("carpenter") and not store.search("nothing-of-it")
        store.purge()
        assert store.search("anziba")
    forced = (
        "SELECT bool_and(relforcerowsecurity) FROM pg_class WHERE relkind = 'r'"
        " AND relname <> 'version' AND relnamespace = 'hermes'::regnamespace"
    )
    assert server.sql(forced, database="older") == [(True,)]


def test_functions_that_another_user_plants_are_not_called(postgres, ada):
    """Up to version 14 anybody may make some in the schema `public`, where names are looked up."""
    session = filled(ada, f"the {SECRET} papers")
    postgres.sql("GRANT CREATE ON SCHEMA public TO bob")
    loot = "INSERT INTO public.loot SELECT body FROM hermes.messages; SELECT"
    takes = "RETURNS %s LANGUAGE sql AS"
    planted = [
        "CREATE TABLE public.loot (body text)",
        "GRANT ALL ON public.loot TO PUBLIC",
        f"CREATE FUNCTION public.unnest(text[]) {takes % 'SETOF text'} $${loot} 'x'::text$$",
        f"CREATE FUNCTION public.theirs(int, numeric) {takes % 'boolean'} $${loot} true$$",
        "CREATE OPERATOR public.<= (LEFTARG=int, RIGHTARG=numeric, FUNCTION=public.theirs)",
        f"CREATE FUNCTION public.pg_advisory_xact_lock(int) {takes % 'int'} $${loot} 1$$",
    ]
    try:
        for statement in planted:
            postgres.sql(statement, "bob")
        ada.close()
        ada.append(session, Message.user("entirely new words"))
        assert len(ada.rows(session)) == 2 and ada.search("papers")
        ada.purge()
        initialise(postgres.url(OWNER), PASSWORD)
        assert postgres.sql("SELECT body FROM public.loot") == []
    finally:
        postgres.sql("DROP OWNED BY bob")
        postgres.sql("GRANT hermes_users TO bob")


def test_a_role_that_passes_row_level_security_is_no_user(postgres, tmp_path):
    store = postgres.store(ADMIN, tmp_path)
    with pytest.raises(StoreError, match="bypasses row-level security; log in as an ordinary role"):
        store.sessions()


def test_the_owner_of_the_tables_is_one_user_among_others(postgres, ada, tmp_path):
    filled(ada, SECRET)
    owner = postgres.store(OWNER, tmp_path)
    filled(owner, "of my own")
    assert len(owner.sessions()) == 1
    assert owner.search(SECRET) == owner.search("anziba") == owner.search("zanzi*") == []
    owner.close()


def test_two_kernels_in_one_session_do_not_write_into_each_other(postgres, ada, tmp_path):
    session = filled(ada, "one")
    other = postgres.store("ada", tmp_path)
    for store in (ada, other):
        store.follow(session)
    other.append(session, Message.user("two"))
    for write in (ada.append, lambda name, message: ada.replace(name, [message])):
        with pytest.raises(SessionTakenError, match="another process has added to it"):
            write(session, Message.user("two as well"))
    ada.follow(session)
    ada.append(session, Message.user("three"))
    assert [m.text for m in other.messages(session)] == ["one", "two", "three"]
    other.delete(session)
    ada.append(session, Message.user("four"))
    assert [m.text for m in ada.messages(session)] == ["four"]
    other.close()


def test_sessions_are_listed_as_they_were_written_to_by_several_kernels(postgres, ada, tmp_path):
    other = postgres.store("ada", tmp_path)
    names = "abc"
    for number, (store, name) in enumerate(zip([ada, other] * 6, names * 4, strict=True)):
        store.append(name, Message.user(str(number)))
        assert next(each.id for each in ada.sessions()) == name
    assert [each.id for each in other.sessions()] == ["c", "b", "a"]
    other.close()


def test_kernels_that_write_side_by_side_lose_nothing(postgres, tmp_path):
    stores = [postgres.store("ada", tmp_path) for _ in range(4)]

    def write(store):
        for number in range(40):
            message = Message.user(f"{number} walrus{number} carpenter{number}")
            store.append("shared" if number % 2 else f"own {id(store)}", message)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, stores))
    assert [row.position for row in stores[0].rows("shared")] == list(range(80))
    assert len(stores[0].search("walrus7", limit=99)) == 4
    for store in stores:
        store.close()


def test_tables_are_made_once_and_only_those_of_our_version_are_written(
    running_postgres, tmp_path, monkeypatch
):
    server = running_postgres
    server.database("fresh")
    url = server.url(OWNER, "fresh")
    with pytest.raises(
        StoreError, match="no hermes tables yet; ask an administrator to run `jupyter hermes"
    ):
        server.store("ada", tmp_path, "fresh").sessions()
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda _: initialise(url, PASSWORD), range(4)))
    assert sorted(done) == [*["version 2, already up to date"] * 3, "version 2, created"]
    store = server.store("ada", tmp_path, "fresh")
    session = filled(store, "one")
    for _ in range(9):  # the server has a plan for it by now
        store.messages(session)
    more = tmp_path / "more.sql"
    more.write_text("ALTER TABLE hermes.messages ADD COLUMN colour text DEFAULT 'red';")
    monkeypatch.setattr(module, "STEPS", (*module.STEPS, str(more)))
    monkeypatch.setattr(module, "VERSION", 3)
    newer = server.store("ada", tmp_path, "fresh")
    with pytest.raises(StoreError, match="earlier version; ask an administrator to run `jupyter"):
        newer.sessions()
    with pytest.raises(StoreError, match="must be owner of table messages"):
        initialise(server.url("ada", "fresh"), PASSWORD)
    assert initialise(url, PASSWORD) == "version 3, created"
    newer.append(session, Message.user("two"))
    monkeypatch.undo()
    assert [m.text for m in store.messages(session)] == ["one", "two"]
    with pytest.raises(StoreError, match="upgrade hermes_nb to save sessions"):
        store.append(session, Message.user("three"))
    with pytest.raises(StoreError, match="those of a newer version, 3"):
        initialise(url, PASSWORD)
    for each in (store, newer):
        each.close()


def lived_in(store):
    """Fill a store as months of work do; return its sessions' ids."""
    call = ToolCall(id="1", name="read_file", arguments={"path": "walrus.csv"}, text="{}")
    first = store.start(title="nul \0", system_prompt="p\0q", notebook="/w/a.ipynb")
    for number in range(6):
        store.append(first, Message.user(f"walrus {number}"), usage=Usage(input=7, cost=0.1))
    store.append(first, Message.assistant("reads", calls=[call]))
    store.append(first, Message.tool(call, "x" * 400_000))
    now = store.messages(first)
    store.replace(first, [now[0], Message.user("the summary"), *now[5:]], system_prompt="after\0")
    store.rewind(first, 3)
    child = store.start(parent=first, source="child", title="it")
    store.append(child, Message.user("carpenter"))
    store.append(first, Message.user("back again"))
    empty = store.start(title="nothing yet")
    store.end(child)
    return first, child, empty


def everything(store, ids):
    found = [store.get(each) for each in ids]
    return (
        [replace(each, title=each.title.replace("\0", "?")) for each in found],
        [store.rows(each) for each in ids],
        [store.messages(each) for each in ids],
        [each.id for each in store.sessions()],
        [(h.session_id, h.position) for h in store.search("walrus carpenter summary")],
        store.lineage(ids[1]),
    )


def test_sessions_move_to_a_server_and_back(postgres, ada, tmp_path):
    told: list[str] = []
    file = InFile(tmp_path / "old.db")
    ids = lived_in(file)
    before = everything(file, ids)
    done = move(file, ada, told.append)
    assert (done.copied, done.same, done.differ) == (3, 0, ())
    assert everything(ada, ids) == before
    again = move(file, ada, told.append)
    assert (again.copied, again.same, again.digest) == (0, 3, done.digest)
    ada.append(ids[1], Message.user("went on over there"))
    copy = InFile(tmp_path / "new.db")
    back = move(ada, copy, told.append)
    assert back.copied == 3 and everything(copy, ids) == everything(ada, ids)
    assert copy.restore(ids[0]) == ada.restore(ids[0])
    assert copy.get(ids[0]).system_prompt == "p\0q"
    file.append(ids[2], Message.user("first here"))
    assert move(file, ada, told.append).copied == 2  # restored, and begun
    file.append(ids[1], Message.user("and otherwise here"))
    assert move(file, ada, told.append).differ == (ids[1],)
    assert told == [f"session {ids[1]} was continued in the target; neither copy was changed"] * 2
    assert everything(file, ids)[3] == [ids[1], ids[2], ids[0]][1:]
    for store in (file, copy):
        store.close()


def test_a_move_that_was_interrupted_goes_on(postgres, ada, tmp_path):
    class Interrupted(InFile):
        def packed(self, session_id):
            if session_id == ids[0]:
                raise KeyboardInterrupt
            return super().packed(session_id)

    file = Interrupted(tmp_path / "old.db")
    ids = lived_in(file)
    with pytest.raises(KeyboardInterrupt):
        move(file, ada, print)
    again = InFile(tmp_path / "old.db")
    done = move(again, ada, print)
    assert done.copied and done.same and done.copied + done.same == 3 and done.differ == ()
    assert everything(ada, ids) == everything(again, ids)
    for store in (file, again):
        store.close()


def test_the_command_line_makes_checks_and_moves(
    running_postgres, tmp_path, home, capsys, monkeypatch
):
    server = running_postgres
    server.database("lines")
    ada = server.url("ada", "lines")
    home.mkdir()
    (home / ".env").write_text(f'STORE_KEY="{PASSWORD}"\n')
    (home / "config.yaml").write_text(
        f"hermes_nb: {{session_store: '{ada}', store: {{key_env: STORE_KEY}}}}"
    )
    monkeypatch.setenv("PGPASSFILE", str(tmp_path / "none"))
    assert main(["store", "init", "--sql"]) == 0
    assert "FORCE ROW LEVEL SECURITY" in capsys.readouterr().out
    assert main(["store", "check"]) == 1
    assert "ask an administrator to run `jupyter hermes store init`" in capsys.readouterr().err
    assert main(["store", "init", server.url(OWNER, "lines")]) == 0
    with closing(SqliteStore(home / "notebook.db")) as store:
        filled(store, "walrus", title="Penguins")
    assert main(["store", "move", "home", ada]) == 0
    told = capsys.readouterr().out
    assert "1 session copied, 0 already there, 0 different; 1 message in" in told
    assert main(["store", "check"]) == 0
    shown = capsys.readouterr().out
    assert "separated  True" in shown and "sessions   1" in shown and PASSWORD not in shown
    assert main(["sessions", "--search", "walrus"]) == 0
    assert "walrus" in capsys.readouterr().out
    assert main(["store", "check", server.url(ADMIN, "lines")]) == 1
    assert "passes row-level security" in capsys.readouterr().err
    assert main(["store", "move", "home", "elsewhere"]) == 2
    assert main(["store", "move", str(tmp_path / "none.db"), ada]) == 1
    assert "there are no sessions in" in capsys.readouterr().err
    assert not (tmp_path / "none.db").exists()
    (home / ".env").write_text("STORE_KEY=wrong\n")
    assert main(["doctor", "--offline"]) == 1
    assert "password authentication failed" in capsys.readouterr().out


def test_the_page_can_be_followed(running_postgres, home, tmp_path, capsys, monkeypatch):
    """With other names than it has, since roles are the whole server's."""
    server = running_postgres
    names = {"hermes_owner": "page_owner", "DATABASE hermes": "DATABASE page", "ada": "eve"}
    address = re.compile(r"postgresql://(\w+)@db\.example\.org/hermes(?:\?sslmode=verify-full)?")
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    with closing(SqliteStore(home / "notebook.db")) as store:
        filled(store, "walrus")

    def renamed(text):
        for before, after in names.items():
            text = re.sub(rf"\b{before}\b", after, text)
        return address.sub(lambda found: server.url(found[1], "page"), text)

    for block in blocks(ROOT / "docs" / "howto" / "postgres.md"):
        if block.language == "sql":
            for statement in renamed(block.text).replace("…", PASSWORD).strip().split(";\n"):
                server.sql(statement)
        elif block.language == "yaml":
            (home / "config.yaml").write_text(renamed(block.text))
        elif "jupyter hermes" in block.text:
            command, *output = block.text.splitlines()
            assert main(renamed(command).split()[3:]) == 0
            shown = capsys.readouterr().out.splitlines()
            assert [line[:11] for line in shown] == [
                {"12 sessions": "1 session c"}.get(line[:11], line[:11]) for line in output
            ]
    with closing(server.store("eve", tmp_path, "page")) as store:
        assert len(store.search("walrus")) == 1


def test_what_is_old_is_forgotten_there_too(postgres, ada, home, monkeypatch):
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    old, new = filled(ada, SECRET, "kept not"), filled(ada, "of today")
    postgres.sql(f"UPDATE hermes.messages SET at = 1 WHERE body LIKE '%{SECRET}%' OR position = 1")
    postgres.sql("UPDATE hermes.sessions SET started = 1")
    wanted = {"session_store": postgres.url("ada"), "store.keep_days": 9}
    told: list[str] = []
    store = open_store(load_settings(overrides=wanted), told.append)
    for thread in threading.enumerate():
        if thread.name == "hermes-forget":
            thread.join(60)
    assert store.incidents() == 0
    assert told == ["deleted 1 session (2 messages, 0.0 MB) older than 9 days (store.keep_days)"]
    assert [each.id for each in store.sessions()] == [new] and store.get(old) is None
    left = [postgres.sql(f"SELECT * FROM hermes.{table}") for table in TABLES]
    assert SECRET not in str(left) and "today" in str(left)
    store.close()


def test_an_address_may_name_several_servers(postgres, tmp_path):
    """Of which libpq takes the first that answers."""
    socket = postgres.url("ada").partition("host=")[2].partition("&")[0]
    url = f"postgresql://ada@nowhere.invalid:5432,{socket.replace('/', '%2F')}:5432/hermes"
    store = module.PostgresStore(url, claims=tmp_path / "n.db", password=PASSWORD)
    assert store.sessions() == []
    assert store.facts()["server"].startswith("postgresql://ada@nowhere.invalid:5432,%2F")
    store.close()


def test_a_password_does_not_stand_in_the_address(home):
    for url in ("postgresql://ada:pw@h/d", "postgresql://ada@h/d?password=pw"):
        with pytest.raises(ConfigError, match=r"set PGPASSWORD in \.env") as told:
            load_settings(overrides={"session_store": url})
        assert "pw" not in str(told.value)
    with pytest.raises(ConfigError, match="expected postgres:// or postgresql://"):
        load_settings(overrides={"session_store": "mysql://h/d"})


@settings(max_examples=40, deadline=None)
@given(text=st.text(max_size=300))
def test_any_text_becomes_a_vector_that_the_server_takes(running_postgres, text):
    made = document(encode(Message.user(text)), at=1.0, began=None)
    vector = tsvector.vector(made, "S1")
    with psycopg.connect(running_postgres.dsn("bob"), autocommit=True) as client:
        (found,) = client.execute("SELECT tsvector_to_array(%s::tsvector)", (vector,)).fetchone()
    assert set(found) == {f"S1{term}" for term in made.terms.split()}


def test_a_text_too_large_for_a_vector_is_found_by_its_beginning(ada):
    session = ada.start()
    text = " ".join(f"{number:064x}" for number in range(16_000))
    ada.append(session, Message.user(f"walrus {text}"))
    ada.append(session, Message.user("\ufdfa" * 64))
    assert [hit.position for hit in ada.search("walrus")] == [0]
    assert [len(each.text) for each in ada.messages(session)] == [len(text) + 7, 64]


def test_numbers_of_documents_are_those_that_ranking_reads():
    made = document('{"role": "tool", "parts": [{"text": "a b"}]}', at=1.0, began=None)
    number = tsvector.number(made, 7, 600)
    assert documents.role_of(number) == "tool"
    assert documents.offset_of(documents.spot_of(number)) == 600 - 2 * documents.BLOCK
    assert documents.block_of(documents.spot_of(number)) == 7 << tsvector.BLOCKS | 2
    first, last = tsvector.numbers_of(7)
    assert first < number < last
