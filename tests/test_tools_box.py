"""Tools in the box: search, SQL, files; and what can be put around a tool."""

import asyncio
import math
import sqlite3
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlab.environments import ToolEnvironment
from agentlab.errors import ConfigError, ToolError
from agentlab.rewards import exact
from agentlab.tools import (
    BM25,
    SQL,
    Cache,
    Calculator,
    Lookup,
    RateLimit,
    Record,
    Replay,
    Retry,
    Sandbox,
    Search,
    Timeout,
    Workspace,
)
from agentlab.types import Action, Task, ToolCall

TASK = Task("t", "?")

# -- search ---------------------------------------------------------------------------------------

WORDS = st.sampled_from(["sea", "sun", "salt", "sand", "sail"])
TEXTS = st.lists(st.lists(WORDS, max_size=8).map(" ".join), min_size=1, max_size=8)


def plain_bm25(texts, query, k1=1.2, b=0.75):
    """The formula, written out."""
    split = [text.split() for text in texts]
    mean = sum(map(len, split)) / len(split) or 1.0
    scores = []
    for words in split:
        score = 0.0
        for word in query.split():
            n, f = sum(word in other for other in split), Counter(words)[word]
            if f:
                idf = math.log(1 + (len(texts) - n + 0.5) / (n + 0.5))
                score += idf * f / (f + k1 * (1 - b + b * len(words) / mean))
        scores.append(score)
    return scores


@given(texts=TEXTS, query=st.lists(WORDS, max_size=4).map(" ".join))
def test_bm25_scores_and_orders_as_the_formula_does(texts, query):
    wanted = plain_bm25(texts, query)
    found = BM25(texts).rank(query, len(texts))
    assert dict(found) == pytest.approx({number: score for number, score in enumerate(wanted) if score > 0})
    assert found == sorted(found, key=lambda item: (-item[1], item[0]))


def test_search_shows_the_best_passages_with_their_titles():
    search = Search(
        {"Cats": "A cat purrs. " * 3, "Dogs": "A dog barks at a cat.", "Fish": "Fish swim."}, 2, max_chars=20
    )
    assert search(query="CAT purrs?") == "[Cats] A cat purrs. A cat p…\n\n[Dogs] A dog barks at a cat…"
    assert search(query="whale") == "Nothing was found."
    assert Search(["one", "two"])(query="two") == "[2] two"


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Search([]), "at least one text"),
        (lambda: Search("text"), "as a list or by title"),
        (lambda: Search(["a"], 0), "top_k"),
        (lambda: Search([1]), "texts only"),
        (lambda: BM25(["a"], b=2), "b lie in 0 to 1"),
    ],
)
def test_a_corpus_that_cannot_be_is_refused(make, says):
    with pytest.raises(ConfigError, match=says):
        make()


# -- SQL ------------------------------------------------------------------------------------------

SCRIPT = "CREATE TABLE t (n INTEGER, name TEXT); INSERT INTO t VALUES (1, 'one'), (2, NULL), (3, 'three');"
ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c"


def test_sql_answers_with_rows_under_their_names():
    sql = SQL(SCRIPT, max_rows=2)
    assert sql(query="SELECT n, name FROM t ORDER BY n LIMIT 2") == "n | name\n1 | one\n2 | NULL"
    assert sql(query="SELECT n FROM t").endswith("(only the first 2 rows are shown)")
    assert sql(query="SELECT n FROM t WHERE n > 9") == "n\n(no rows)"
    assert "name" in sql(query="PRAGMA table_info(t)")


@pytest.mark.parametrize(
    "query",
    [
        "DELETE FROM t",
        "INSERT INTO t VALUES (4, 'four')",
        "DROP TABLE t",
        "CREATE TABLE u (n)",
        "PRAGMA writable_schema=ON",
        "ATTACH 'other.db' AS other",
        "VACUUM INTO 'copy.db'",
        "SELECT load_extension('x')",
    ],
)
def test_sql_is_read_only_unless_asked(tmp_path, monkeypatch, query):
    monkeypatch.chdir(tmp_path)
    with sqlite3.connect(tmp_path / "a.db") as connection:
        connection.executescript(SCRIPT)
    connection.close()
    for sql in (SQL(SCRIPT), SQL(tmp_path / "a.db")):
        with pytest.raises(ToolError, match="not allowed|no such function"):
            sql(query=query)
        assert sql(query="SELECT count(*) FROM t").endswith("3")
    assert [path.name for path in tmp_path.iterdir()] == ["a.db"]


def test_a_writable_database_keeps_what_an_episode_changes_to_itself(tmp_path):
    first, second = (SQL(writable=True).bind(Task("t", "?", {"sql": SCRIPT})) for _ in range(2))
    assert first(query="DELETE FROM t WHERE n > 1") == "Done; 2 rows changed."
    assert first(query="SELECT count(*) FROM t").endswith("1")
    assert second(query="SELECT count(*) FROM t").endswith("3")
    for query in (f"ATTACH '{tmp_path}/b.db' AS b", f"VACUUM INTO '{tmp_path}/c.db'", "PRAGMA journal_mode=WAL"):
        with pytest.raises(ToolError):
            first(query=query)
    assert not list(tmp_path.iterdir())


def test_a_statement_that_never_ends_or_grows_without_bound_is_stopped():
    started = time.monotonic()
    with pytest.raises(ToolError, match="longer than 0.2 s"):
        SQL(SCRIPT, timeout_s=0.2)(query=ENDLESS)
    assert time.monotonic() - started < 5
    with pytest.raises(ToolError, match="too big|full"):
        SQL(SCRIPT, max_bytes=1 << 20)(query="SELECT hex(zeroblob(9000000))")


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("SELEC 1", "syntax error"),
        ("SELECT absent FROM t", "no such column: absent"),
        ("SELECT 1; SELECT 2", "one statement at a time"),
        ("SELECT '\ud800'", "surrogates not allowed"),
    ],
)
def test_wrong_sql_is_told_to_the_model(query, says):
    with pytest.raises(ToolError, match=says):
        SQL(SCRIPT)(query=query)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: SQL("gone.db"), "There is no database 'gone.db'"),
        (lambda: SQL("CREATE TABEL t;"), "is wrong"),
        (lambda: SQL().bind(TASK), "needs a database"),
        (lambda: SQL(SCRIPT, timeout_s=0), "timeout_s above 0"),
    ],
)
def test_a_database_that_cannot_be_is_refused(make, says):
    with pytest.raises(ConfigError, match=says):
        make()


# -- files ----------------------------------------------------------------------------------------


def on_files(workspace):
    """A session with a workspace."""
    return [
        workspace(command="list"),
        workspace(command="write", path="./notes//a.txt", text="one two\n"),
        workspace(command="replace", path="notes/a.txt", text="two", new_text="three"),
        workspace(command="read", path="notes/a.txt"),
        workspace(command="list"),
        workspace(command="delete", path="notes/a.txt"),
        workspace(command="list"),
    ]


SESSION = [
    "(no files)",
    "Wrote 8 characters to notes/a.txt.",
    "Replaced it in notes/a.txt.",
    "one three\n",
    "notes/a.txt (10 bytes)",
    "Deleted notes/a.txt.",
    "(no files)",
]


def test_a_workspace_works_on_files_in_memory_and_in_a_sandbox_alike():
    assert on_files(Workspace()) == SESSION
    with Sandbox(walls="subprocess") as sandbox:
        assert on_files(Workspace(sandbox)) == SESSION
        Workspace(sandbox)(command="write", path="x.sh", text="echo hi")
        assert sandbox.bash("bash x.sh").output == "hi\n"


def test_each_episode_has_files_of_its_own():
    workspace = Workspace({"a.txt": "a"})
    first, second = workspace.bind(TASK), workspace.bind(TASK)
    first(command="write", path="a.txt", text="changed")
    assert second(command="read", path="a.txt") == "a"
    assert Workspace().bind(Task("t", "?", {"files": {"b": "b"}}))(command="list") == "b (1 bytes)"


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../x", "a/../../x", ".", "a\0b"])
def test_a_path_that_leads_out_of_the_workspace_is_refused(path):
    with pytest.raises(ToolError, match="must lead to a file in the workspace"):
        Workspace()(command="read", path=path)
    with pytest.raises(ConfigError, match="must lead to"):
        Workspace({path: ""})


def test_what_cannot_be_done_to_a_file_is_said():
    workspace = Workspace({"a": "xx"})
    for wrong, says in (
        ({"command": "read", "path": "b"}, "There is no file 'b'"),
        ({"command": "replace", "path": "a", "text": "x"}, "occurs 2 times"),
        ({"command": "replace", "path": "a"}, "is empty"),
        ({"command": "write", "path": "a/b", "text": ""}, "a file and a folder at once"),
        ({"command": "write", "path": "c", "text": "x" * 1_000_001}, "is full"),
        ({"command": "delete", "path": "b"}, "There is no file"),
    ):
        with pytest.raises(ToolError, match=says):
            workspace(**wrong)


# -- around a tool --------------------------------------------------------------------------------


class Counting:
    """A service that fails a few times, and then answers."""

    def __init__(self, failures=0, error=None):
        self.calls, self.failures, self.error = 0, failures, error or ConnectionError("down")

    def __call__(self, word: str = "") -> str:
        """Ask."""
        self.calls += 1
        if self.calls <= self.failures:
            raise self.error
        return f"{word}{self.calls}"


def as_async(service):
    async def ask(word: str = "") -> str:
        """Ask."""
        return service(word)

    return ask


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def wrap(request):
    """Makes a tool around a service, and calls it: plainly, or as `async def`."""

    def make(around, service, *args, **kwargs):
        tool = around(as_async(service) if request.param else service, *args, **kwargs)
        if not request.param:
            return tool

        def call(**arguments):
            async def awaited():
                return await tool(**arguments)

            return asyncio.run(awaited())

        return call

    return make


def test_retry_calls_again_until_it_works_or_gives_up(wrap):
    assert wrap(Retry, Counting(2), 3, wait_s=0)() == "3"
    with pytest.raises(ConnectionError, match="down"):
        wrap(Retry, Counting(3), 3, wait_s=0)()
    final = Counting(1, ToolError("no such city"))
    with pytest.raises(ToolError, match="no such city"):
        wrap(Retry, final, 3, wait_s=0)()
    assert final.calls == 1


def test_a_cache_asks_once_for_the_same_arguments_and_forgets_the_oldest(wrap):
    service = Counting()
    ask = wrap(Cache, service, 2)
    assert [ask(word=word) for word in "aabaca"] == ["a1", "a1", "b2", "a1", "c3", "a1"]
    assert ask(word="b") == "b4" and service.calls == 4


def test_a_cache_remembers_no_error(wrap):
    ask = wrap(Cache, Counting(1))
    with pytest.raises(ConnectionError):
        ask(word="a")
    assert ask(word="a") == "a2"


def test_a_rate_limit_spaces_calls_over_all_threads():
    ask = RateLimit(Counting(), 50)
    started = time.monotonic()
    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(lambda _: ask(), range(11)))) == 11
    assert 0.19 <= time.monotonic() - started < 3


def test_a_rate_limit_holds_for_async_tools(wrap):
    ask = wrap(RateLimit, Counting(), 50)
    started = time.monotonic()
    assert [ask(word="a") for _ in range(3)] == ["a1", "a2", "a3"]
    assert time.monotonic() - started >= 0.039


def test_a_timeout_gives_an_async_call_up():
    async def slow(seconds: float) -> str:
        """Wait."""
        await asyncio.sleep(seconds)
        return "done"

    async def own() -> str:
        """Fail by itself."""
        raise TimeoutError("of the service")

    env = ToolEnvironment(TASK, {"slow": Timeout(slow, 0.05), "own": Timeout(own, 5)}, exact)
    env.reset()
    calls = (ToolCall("slow", {"seconds": 30.0}), ToolCall("slow", {"seconds": 0.0}), ToolCall("own"))
    texts = [result.text for result in env.step(Action(calls)).observation]
    assert texts == [
        "Error: It took longer than 0.05 s and was given up.",
        "done",
        "Error: TimeoutError: of the service",
    ]
    with pytest.raises(ConfigError, match="seconds must be finite and above 0"):
        Timeout(slow, 0)
    with pytest.raises(ConfigError, match="max_left must be at least 1"):
        Timeout(slow, 1, max_left=0)


def test_a_timeout_tells_the_model_of_a_plain_function_that_hangs_and_leaves_only_so_many_behind():
    release, back = threading.Event(), threading.Semaphore(0)

    def hang(value: str) -> str:
        """Hang."""
        release.wait()
        back.release()
        return value

    def fail() -> str:
        """Fail."""
        raise TimeoutError("of the service")

    limited = Timeout(hang, 0.05, max_left=2)
    env = ToolEnvironment(TASK, {"hang": limited, "fail": Timeout(fail, 5), "sum": Timeout(Calculator, 5)}, exact)
    env.reset()
    calls = (*(ToolCall("hang", {"value": "x"}) for _ in range(3)), ToolCall("fail"))
    texts = [r.text for r in env.step(Action((*calls, ToolCall("sum", {"expression": "6*7"})))).observation]
    assert texts == [
        "Error: It took longer than 0.05 s and was given up.",
        "Error: It took longer than 0.05 s and was given up.",
        "Error: 2 calls before it were given up and still run.",
        "Error: TimeoutError: of the service",
        "42",
    ]
    release.set()
    assert back.acquire(timeout=10) and back.acquire(timeout=10)
    assert limited(value="again") == "again", "what came back late makes room"


def test_what_is_around_a_tool_is_described_and_bound_as_the_tool_is():
    task = Task("t", "?", {"table": {"pen": 3}})
    for tool in (Retry(Lookup), RateLimit(Lookup, 1000), Cache(Lookup)):
        assert tool.spec("lookup") == Lookup().spec("lookup")
        assert tool.bind(task)(item="pen") == "3"
    shared = Cache(Lookup({"pen": 3}))
    assert shared.bind(task) is shared
    own, other = Cache(Lookup).bind(task), Cache(Lookup).bind(Task("u", "?", {"table": {"pen": 4}}))
    assert (own(item="pen"), other(item="pen")) == ("3", "4")


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Retry(Calculator, 0), "attempts must be at least 1"),
        (lambda: Retry(Calculator, on=("x",)), "classes of errors"),
        (lambda: RateLimit(Calculator, 0), "per_second"),
        (lambda: Cache(Calculator, 0), "size must be at least 1"),
        (lambda: Record(Calculator, "/no/such/folder/x"), "existing folder"),
        (lambda: Replay(Calculator, "/tmp/no-such-recording.jsonl"), "There is no recording"),
        (lambda: Replay(Calculator, "x", on_missing="cal"), "Did you mean 'call'"),
    ],
)
def test_impossible_options_are_refused_at_once(make, says):
    with pytest.raises(ConfigError, match=says):
        make()


# -- record and replay ----------------------------------------------------------------------------


def test_a_recorded_tool_answers_again_as_it_did_for_each_task_and_time(wrap, tmp_path):
    service, path = Counting(), tmp_path / "calls.jsonl"
    record = wrap(Record, service, path)
    assert [record(word=word) for word in "aab"] == ["a1", "a2", "b3"]
    replay = wrap(Replay, service, path)
    assert [replay(word=word) for word in "abaa"] == ["a1", "b3", "a2", "a2"]
    assert service.calls == 3


def test_every_episode_of_a_task_replays_from_the_beginning(tmp_path):
    path = tmp_path / "calls.jsonl"
    one, two = Task("one", "?"), Task("two", "?")
    record = Record(Counting(), path)
    assert [record.bind(task)(word="x") for task in (one, two, one)] == ["x1", "x2", "x3"]
    replay = Replay(Counting(), path)
    episodes = [replay.bind(task) for task in (one, one, two, Task("three", "?"))]
    assert [[episode(word="x") for _ in range(2)] for episode in episodes] == [
        ["x1", "x3"],
        ["x1", "x3"],
        ["x2", "x2"],
        ["x1", "x2"],
    ]


def test_errors_are_recorded_and_raised_again(tmp_path):
    record = Record(Counting(1), tmp_path / "calls.jsonl")
    with pytest.raises(ConnectionError):
        record(word="a")
    with pytest.raises(ToolError, match="down"):
        Replay(Counting(), tmp_path / "calls.jsonl")(word="a")


def test_a_call_that_was_never_recorded_is_told_called_or_recorded(tmp_path):
    path = tmp_path / "calls.jsonl"
    path.touch()
    with pytest.raises(ToolError, match="never recorded"):
        Replay(Counting(), path)(word="a")
    assert Replay(Counting(), path, on_missing="call")(word="a") == "a1"
    assert Replay(Counting(), path, on_missing="record")(word="a") == "a1"
    assert Replay(Counting(), path)(word="a") == "a1"


def test_threads_record_whole_lines(tmp_path):
    record = Record(Counting(), tmp_path / "calls.jsonl")
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda n: record(word=str(n) * 500), range(100)))
    replay = Replay(Counting(), tmp_path / "calls.jsonl")
    assert all(replay(word=str(n) * 500).startswith(str(n) * 500) for n in range(100))


def test_a_malformed_recording_is_refused_with_its_line(tmp_path):
    (tmp_path / "calls.jsonl").write_text('{"task": "", "arguments": {}, "answer": "1"}\n{"task": ""}\n')
    with pytest.raises(ConfigError, match="Line 2"):
        Replay(Counting(), tmp_path / "calls.jsonl")
