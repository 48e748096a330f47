"""The built-in model in a turn: what it computes, quotes and refuses, without its weights.

Real tools work on a real shell and real files. The weights are missing on purpose: whatever these
turns answer comes from the rules.
"""

from __future__ import annotations

import pandas as pd
import pytest
from hermes_nb.core.events import TurnEnded
from hermes_nb.core.loop import Agent
from hermes_nb.core.messages import Message, Reply, ToolCall
from hermes_nb.core.protocols import Request, Variable
from hermes_nb.core.tools import Tool, Toolset
from hermes_nb.extras.local.file_questions import Call
from hermes_nb.extras.local.model import EmbeddedModel
from hermes_nb.extras.local.questions import Query, read
from hermes_nb.extras.local.rules import FileAnswer, checked, is_code, next_step
from hermes_nb.extras.local.weights import WeightsStore
from hermes_nb.notebook.commands.fix import explain_prompt, fix_prompt
from hermes_nb.notebook.document.document import Cell
from hermes_nb.notebook.run_tools import kernel_tools
from hermes_nb.notebook.variables import summaries, variables_of
from hermes_nb.tools.files import files

from tests.conftest import take_turn
from tests.notebook.conftest import shell

__all__ = ["shell"]

TABLE = pd.DataFrame(
    {
        "city": ["Bern", "Bern", "Zug", "Basel"],
        "rooms": [3, 4, 5, 2],
        "price_chf": [500.0, 700.0, None, 900.0],
        "garden": ["yes", "no", "yes", "yes"],
        "department": ["IT", "IT", "HR", "HR"],
        "owner_name": ["Al", "Bo", "Cy", "Di"],
        "sold": pd.to_datetime(["2020-01-01", "2021-05-01", "2021-06-01", "2022-01-01"]),
    }
)


@pytest.fixture
def ask(shell, tmp_path):
    """Take a turn and return its answer and its last event."""
    shell.user_ns["houses"] = TABLE.copy()
    model = EmbeddedModel(
        lambda: variables_of(shell), store=WeightsStore(folder=tmp_path / "none", environ={})
    )
    root = tmp_path / "files"
    (root / "docs").mkdir(parents=True)
    (root / "notes.md").write_text("# Notes\n\n- The deadline is 21 March.\n- Ana leads.\n")
    (root / "docs" / "app.ini").write_text("[server]\nport = 8642\n")
    (root / "rows.csv").write_text("a,b\n1,2\n3,4\n")

    def asked(text: str) -> tuple[str, TurnEnded]:
        agent = Agent(model, kernel_tools(shell) + files(root))
        *_, ended = take_turn(agent, text)
        return agent.messages[-1].text, ended

    return asked


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("How many houses are there?", "`houses` has 4 rows."),
        ("What is the average price?", "The mean `price_chf` is 700."),
        ("Which city has the most houses?", "`city` with the most rows: Bern."),
        ("Mean rooms per city?", "The mean `rooms` for each `city`: Basel 2, Bern 3.50 and Zug 5."),
        ("How many houses have a garden?", "`houses` has 3 rows where `garden` is yes."),
        (
            "Which city's price grew most from 2020 to 2021?",
            "`city` with the largest increase of the total `price_chf` from 2020 to 2021 of "
            "`sold`: Bern.",
        ),
        ("How many houses have no price?", "1 rows of `houses` have no `price_chf`."),
        (
            "How many rooms do the houses in the IT department have in total?",
            "The total `rooms` where `department` is IT is 7.",
        ),
        (
            "How many houses in Bern or Zug have more than 3 rooms?",
            "`houses` has 2 rows where `city` is Bern or Zug and `rooms` is above 3.",
        ),
        (
            "How many houses were sold in 2021?",
            "`houses` has 2 rows where `sold` is equal to 2021.",
        ),
        ("What port is set in app.ini?", "`port` is 8642 in `docs/app.ini`."),
        ("When is the deadline in notes.md?", "`notes.md` says: The deadline is 21 March."),
        ("Which columns does rows.csv have?", "The columns of `rows.csv` are a and b."),
        ("Which file mentions Ana?", "It is in `notes.md`."),
        ("what files do i have here", "This folder contains `docs/`, `notes.md` and `rows.csv`."),
        ("whats in the docs folder", "`docs` contains `app.ini`."),
        ("whats in notes.md", "`notes.md` says: Notes · The deadline is 21 March. · Ana leads."),
        (
            "pls summarise notes.md",
            "`notes.md` says: Notes · The deadline is 21 March. · Ana leads.",
        ),
        ("how many houses r there", "`houses` has 4 rows."),
        ("avrage price of the houses", "The mean `price_chf` is 700."),
        ("how many diffrent cities", "There are 3 different values of `city`."),
        (
            "show the top 2 owners by rooms",
            "The 2 rows of `houses` with the largest `rooms`: Cy 5 and Bo 4.",
        ),
        (
            "2 cheapest houses",
            "The 2 rows of `houses` with the smallest `price_chf`: Al 500.0 and Bo 700.0.",
        ),
        (
            "whats the most expensive house?",
            "The row with the largest `price_chf`: owner_name Di and price_chf 900.",
        ),
    ],
)
def test_an_answer_is_composed_from_the_data(ask, question, answer):
    text, ended = ask(question)
    assert text == answer
    assert ended == TurnEnded("answered")


@pytest.mark.parametrize(
    ("question", "reason"),
    [
        ("What is the average colour?", "`houses` has no column and no value for `colour`"),
        ("How many houses are in Geneva?", "no column and no value for `geneva`"),
        ("How many nurses are there?", "`nurses`"),
        ("What is the mean price of houses not in Bern?", "`not`"),
        ("What is the second highest price?", "`second`"),
        ("What is the ratio of the largest to the smallest price?", "value for `ratio` (columns"),
        ("What is the value of learning_rate?", "there is no variable `learning_rate`"),
        ("What is the timeout in docs/app.ini?", "`docs/app.ini` does not mention `timeout`"),
        ("What does plan.docx say?", "there is no file `plan.docx` here"),
        ("What is the mean of a in rows.csv?", "`rows.csv` is not loaded as a table"),
        ("Which file mentions Kubernetes?", "no file here contains that"),
        ("Which house is the saddest?", "`saddest`"),
        ("Which city's price fell most from 2020 to 2021?", "no row has a value for that"),
        ("Which house shrank between 2020 and 2021?", "for `shrank` ("),
        ("How many houses are in each district?", "`district`"),
        ("Which city has the longest houses on average?", "`longest`"),
        ("What is the total price of the 2 cheapest houses?", "`2`"),
        ("How long is the list called names?", "there is no variable `names`"),
        ("What is the best value of a in rows.csv?", "`rows.csv` is not loaded as a table"),
        ("wie hoch ist die Miete laut notes.md", "`notes.md` does not mention"),
        ("What will the price be tomorrow?", "nothing here can look that up"),
    ],
)
def test_what_is_not_there_is_admitted_without_a_check_mark(ask, question, reason):
    text, ended = ask(question)
    assert text.startswith("I couldn't find that: ") and reason in text
    assert ended.note == "no verified answer"


@pytest.mark.parametrize("question", ["What is in houses?", "Describe the table houses."])
def test_a_table_is_described_by_its_columns(ask, question):
    text, ended = ask(question)
    assert text.startswith("`houses` has these columns: city ") and "rooms int64" in text
    assert not ended.note


@pytest.mark.parametrize("question", ["Who are you?", "who made you", "Are you ChatGPT?"])
def test_it_knows_that_it_is_hermes(ask, question):
    text, _ = ask(question)
    assert text.startswith("I'm Hermes") and "OpenAI" not in text


def test_a_failed_calculation_is_no_answer(ask, shell):
    """The column's name is the number 5, not a text."""
    shell.user_ns["houses"] = TABLE.rename(columns={"rooms": 5})
    text, ended = ask("What is the mean of column 5?")
    assert text == "I couldn't find that: the calculation failed (with `houses`)."
    assert ended.note == "no verified answer"


def test_what_no_rule_covers_is_asked_of_the_weights(ask):
    _, ended = ask("Explain what a median is.")
    assert ended.reason == "failed" and "must download its weights" in ended.error


def failed(shell, source: str, error: str, wish=fix_prompt) -> str:
    """Return the prompt about a cell that has failed with this error."""
    name, _, message = error.partition(": ")
    output = {"output_type": "error", "ename": name, "evalue": message, "traceback": [error]}
    cell = Cell(id="c4", type="code", source=source, hash="", index=3, outputs=[output])
    if wish is fix_prompt:
        return fix_prompt(shell, cell=cell)
    return explain_prompt(shell, above=cell, named=True)


def test_a_misspelled_name_is_repaired_and_everything_else_is_admitted(shell):
    columns = {"rooms": "int64", "price_chf": "float64"}
    houses = [Variable(name="houses", type="pandas.DataFrame", columns=columns)]
    tools = Toolset(
        [
            Tool(name=name, description="", parameters={}, run=lambda *_: "")
            for name in ("edit_cell", "run_cell")
        ]
    )

    def step(prompt: str, *made: tuple[str, str]):
        messages = [Message.user(prompt)]
        for number, (name, result) in enumerate(made):
            call = ToolCall(id=f"c{number}", name=name, arguments={"id": "c4"})
            messages += [Message.assistant(calls=[call]), Message.tool(call, result)]
        return next_step(Request(messages=messages, tools=tools), houses)

    source = "m = houses['price_cfh'].mean()\nprint(m)"
    prompt = failed(shell, source, "KeyError: 'price_cfh'")
    edit = step(prompt)
    assert edit == Call(
        "edit_cell",
        {
            "id": "c4",
            "old": "m = houses['price_cfh'].mean()",
            "new": "m = houses['price_chf'].mean()",
        },
    )
    assert step(prompt, ("edit_cell", "edited cell 4")) == Call("run_cell", {"id": "c4"})
    for made in (
        [("edit_cell", "edited cell 4"), ("run_cell", "700.0")],
        [("edit_cell", "edited cell 4\n\nThe user kept it and ran it:\n700.0")],
    ):
        said = step(prompt, *made)
        assert said.checked and said.text.endswith("I changed the cell and ran it.")
    again = step(prompt, ("edit_cell", "edited cell 4"), ("run_cell", "KeyError: 'rooms '"))
    assert not again.found
    assert (
        "no key or column `beds` (columns: `rooms`"
        in step(failed(shell, "x.beds", "KeyError: 'beds'")).text
    )
    assert not step(failed(shell, "1 / 0", "ZeroDivisionError: division by zero")).found
    name = step(failed(shell, "house.head()", "NameError: name 'house' is not defined"))
    assert name.arguments["new"] == "houses.head()"
    why = step(failed(shell, source, "KeyError: 'price_cfh'", wish=explain_prompt))
    assert why.text == "There is no column `price_cfh`; the closest name is `price_chf`."


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ("np.int64(391)", "The result is 391"),
        ("[new reverse: function]", "I ran the code of the call above."),
        ("<Axes: xlabel='a'>\n[image/png 568x487, not shown]", "I ran the code of the call above."),
        ("a  b\n1  2", "I ran the code of the call above."),
    ],
)
def test_the_result_of_the_weights_code_is_not_verified(result, said):
    call = ToolCall(id="c1", name="run_python", arguments={"code": "17 * 23"})
    said_so_far = (Message.user("Calculate it."), Message.assistant(calls=[call]))
    tool = Tool(name="run_python", description="", parameters={}, run=lambda *_: "")
    messages = (*said_so_far, Message.tool(call, result))
    step = next_step(Request(messages=messages, tools=Toolset([tool])), [])
    assert isinstance(step, FileAnswer) and step.text.startswith(said) and not step.checked


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("Paris is the capital of France.", "Paris is the capital of France."),
        ("df['a'].mean()", "I couldn't find that: "),
        ("Traceback (most recent call last):\nKeyError: 'a'", "I couldn't find that: "),
        ("```python\nprint(1)\n```", "I couldn't find that: "),
    ],
)
def test_words_of_the_weights_are_not_verified_and_never_code(said, shown):
    asked = Request(messages=(Message.user("What is the capital of France?"),), tools=Toolset())
    reply = checked(Reply(message=Message.assistant(said)), asked)
    assert reply.message.text.startswith(shown) and not is_code(reply.message.text)
    assert reply.finish == "unverified"


@pytest.mark.parametrize(
    ("question", "said", "is_shown"),
    [
        ("Wie hoch ist der Preis?", "The largest price_chf is 100.", False),
        ("was kostet ein Haus in Bern", "It costs 500.", False),
        ("Explain what a price index is.", "It compares prices.", True),
        ("What is the capital of France?", "Paris.", True),
    ],
)
def test_the_weights_say_nothing_about_a_table_without_a_calculation(question, said, is_shown):
    asked = Request(messages=(Message.user(question),), tools=Toolset())
    reply = Reply(message=Message.assistant(said))
    shown = checked(reply, asked, summaries({"houses": TABLE})).message.text
    assert shown == said if is_shown else shown.startswith("I couldn't find that: ")


@pytest.mark.parametrize("seed", range(40))
def test_a_query_uses_every_word_or_is_not_made(seed):
    """A word that the table does not explain is never ignored, wherever it stands."""
    words = "how many houses in bern have more than 3 rooms".split()
    table = summaries({"houses": TABLE})[0]
    assert isinstance(read(" ".join(words), table), Query)
    place = seed % len(words)
    strange = ("purple", "glacier", "unsold", "negative", "weekly")[seed % 5]
    changed = [*words[:place], strange, *words[place:]]
    assert not isinstance(read(" ".join(changed), table), Query)
