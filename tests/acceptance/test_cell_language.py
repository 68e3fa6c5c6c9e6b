"""A cell in a run reads as a cell of the notebook: what it shows, what is refused, its errors."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from tests.kit.real_server import Served
from tests.kit.user_notebook import UserNotebook


@pytest.fixture(scope="module")
def notebook(shared_server: Served) -> Iterator[UserNotebook]:
    """One notebook for all tests here: no run needs what an earlier one did."""
    opened = UserNotebook(shared_server)
    yield opened
    opened.close()


def test_the_last_expression_and_what_is_displayed_are_shown(notebook: UserNotebook) -> None:
    """A cell in a run shows what it would show in the notebook."""
    shown = notebook.run(
        "%%gated_eval shows\nfrom IPython.display import display\n"
        "display('one')\nprint('two')\n[3] * 3"
    )
    assert shown.displays[1:] == ["'one'", "two", "[3, 3, 3]"]
    assert len(notebook.run("%%gated_eval shows\n[3] * 3;").displays) == 1


def test_prints_displays_and_clears_come_out_as_in_a_notebook(notebook: UserNotebook) -> None:
    """Whoever prints, the cell, a subprocess or C, all of it is where a notebook would have it, and
    a clear takes off what was before it.
    """
    shown = notebook.run(
        "%%gated_eval order\nimport os, subprocess\n"
        "from IPython.display import clear_output, display\n"
        "print('before')\n"
        "for i in range(40):\n"
        "    display(i)\n"
        "    print('printed', i)\n"
        "clear_output(wait=True)\n"
        "for i in range(3):\n"
        "    subprocess.run(['echo', f'process {i}'])\n"
        "    display({'text/plain': f'display {i}'}, raw=True)\n"
        "    os.write(1, f'written {i}'.encode())\n"
        "    bar = display({'text/plain': '0 %'}, raw=True, display_id=True)\n"
        "    for share in range(101):\n"
        "        bar.update({'text/plain': f'{share} %'}, raw=True)"
    )
    card, *below = (text for text in shown.displays if text)
    assert "before" not in card
    assert "printed" not in card
    assert below == [
        line for i in range(3) for line in (f"process {i}", f"display {i}", f"written {i}", "100 %")
    ]


def test_a_widget_is_shown_as_text_that_follows_it(notebook: UserNotebook) -> None:
    """A bar made for notebooks is a line that ends as the bar does; no view lacks its model."""
    shown = notebook.run(
        "%%gated_eval bars\nimport ipywidgets\nfrom tqdm.notebook import tqdm\n"
        "for i in tqdm(range(4), desc='outer'):\n"
        "    for j in tqdm(range(2), leave=False):\n"
        "        pass\n"
        "print('then')\n"
        "slider = ipywidgets.IntSlider(7, description='depth')\n"
        "display(ipywidgets.VBox([slider, ipywidgets.HTML('<b>a &lt; b</b>')]))\n"
        "slider.value = 9"
    )
    bar, *rest = (text for text in shown.displays[1:] if text)
    assert re.fullmatch(r"outer: 100% \|█{20}\| 4/4 \[.*\]", bar)
    assert rest == ["then", "depth 9\na < b"]
    assert not any("widget-view" in kind for kind in shown.kinds)


def test_what_is_too_large_to_show_is_said(notebook: UserNotebook) -> None:
    """A display beyond any page is named with its size in its place and on the card, and what
    comes after it is shown.
    """
    shown = notebook.run(
        "%%gated_eval large\nfrom IPython.display import HTML, display\n"
        "display(HTML('z' * 100_000_000))\n'small'"
    )
    said = "a display of 95 MB is not shown: 24 MB is the most"
    card, *below = shown.displays
    assert said in card
    assert below == [f"[{said}]", "'small'"]


def test_an_error_keeps_its_name_whatever_was_displayed_before(notebook: UserNotebook) -> None:
    """Thousands of displays and warnings, and a message of any size, leave room for the error."""
    shown = notebook.fails(
        "%%gated_eval flood\n"
        "publish = get_ipython().display_pub.publish\n"
        "for i in range(30_000):\n"
        "    publish({'text/plain': str(i)}, update=i > 0, transient={'display_id': 'd'})\n"
        "raise ValueError('too much' * 1_000_000)"
    )
    error = shown.error or {}
    assert error["ename"] == "RunFailed"
    assert "ValueError: too much" in error["evalue"]
    assert len(json.dumps(error)) < 3_000_000
    assert shown.displays[1] == "29999"


def test_await_works_at_the_top_of_a_cell(notebook: UserNotebook) -> None:
    """A cell may await as in a notebook, with an expression to show at its end."""
    shown = notebook.run(
        "%%gated_eval awaits\nimport asyncio\n"
        "a, b = await asyncio.gather(asyncio.sleep(0, 1), asyncio.sleep(0, 2))\n"
        "await asyncio.sleep(0, a + b)"
    )
    assert shown.displays[1:] == ["3"]


@pytest.mark.parametrize(
    "line",
    [
        "!ls -l",
        "%time x = 1",
        "%%bash",
        "?print",
        "print?",
        "print??",
        "x = !ls",
        'x["key"] = !ls',
        "x = %timeit -o 1",
        "    !ls",
    ],
)
def test_a_line_for_the_notebook_is_refused_by_its_number(
    shared_server: Served, notebook: UserNotebook, line: str
) -> None:
    """`%`, `!` and `?` lines are refused before anything is queued, naming line and remedy."""
    before = "if True:\n    x = {}" if line.startswith(" ") else "x = {}\n"
    told = notebook.refused(f"%%gated_eval magic\n{before}\n{line}")
    assert told.startswith(f"line 4 `{line.strip()}`: %, ! and ? lines belong to the notebook")
    assert shared_server.ask("GET", "/runs?name=magic").json["runs"] == []


OWN = {
    "a comprehension": "[x for x in range(3)], {x for x in 'a'}, {x: 1 for x in 'a'}",
    "a loop": "for x in range(2): x",
    "except as": "try:\n    1 / 0\nexcept ZeroDivisionError as x:\n    x",
    "a walrus": "if (x := 2) > 1: x",
    "a walrus in a comprehension": "any((x := n) > 1 for n in range(3))\nx",
    "with as": "import io\nwith io.StringIO() as x: x",
    "an import": "import math as x\nx.pi",
    "an import that may fail": "try:\n    import nothing as x\nexcept ImportError:\n    x = 1\nx",
    "a global of a function": "def f():\n    global x\n    x = 1\nf()\nx",
    "an argument": "def f(x, *y, **z): return x, y, z\nf(1)",
    "a function before its name": "def f(): return x\nx = 1\nf()",
    "a name of a nested function": "def f():\n    x = 1\n    def g(): return x\n    g()\nf()",
    "a class body": "class A:\n    x = 1\n    y = x\nA.y",
    "a pattern": "match {'a': [1, 2]}:\n    case {'a': [x, *y], **z}: x, y, z",
    "a word of an attribute": "class A: pass\na = A()\na.x = 1\na.x",
    "a keyword": "dict(x=1)",
    "after del": "x = 1\ndel x",
    "a later annotation": "from __future__ import annotations\ndef f(a: x) -> y: pass",
    "a local annotation": "def f():\n    a: x = 1\n    return a\nf()",
    "builtins and the notebook's own": "get_ipython(), len('a'), __name__, display",
}


@pytest.mark.parametrize("source", OWN.values(), ids=OWN)
def test_a_name_that_the_cell_binds_is_its_own(notebook: UserNotebook, source: str) -> None:
    """Whatever way a name is bound by, the notebook's name of the same kind is not asked for."""
    notebook.run("x = y = z = n = 1")
    notebook.run(f"%%gated_eval names\n{source}")


MISSING = {
    "a plain use": "print(x)",
    "before it is bound": "x = x + 1",
    "an augmented assignment": "x += 1",
    "an f-string": "f'{1:>{x}}'",
    "a function": "def f(): return x",
    "a nested function": "def f():\n    def g(): return x",
    "a lambda": "f = lambda: x",
    "a default": "def f(a=x): pass",
    "a class body": "class A:\n    y = x",
    "a method past its class": "class A:\n    x = 1\n    def f(self): return x",
    "a base": "class A(x): pass",
    "a decorator": "@x\ndef f(): pass",
    "an annotation": "a: x = 1",
    "a comprehension": "[n for n in range(3) if n in x]",
    "a subject": "match x:\n    case _: pass",
    "a value pattern": "match 1:\n    case x.pi: pass",
    "del": "del x",
    "an item": "x['a'] = 1",
    "await": "await x",
}


@pytest.mark.parametrize("source", MISSING.values(), ids=MISSING)
def test_a_name_of_the_notebook_that_was_not_given_is_refused(
    notebook: UserNotebook, source: str
) -> None:
    """The refusal comes before anything is queued, and says which option gives the name."""
    notebook.run("x = 1")
    told = notebook.refused(f"%%gated_eval names\n{source}")
    assert told == "`x` is defined in this notebook but not given to the run: add --input x"


def test_what_the_notebook_remembers_is_no_more_there_than_its_own_names(
    notebook: UserNotebook,
) -> None:
    """The last result is refused like any name, instead of being an empty one, and can be given."""
    notebook.run("6 * 7")
    for name in ("_", "Out"):
        told = notebook.refused(f"%%gated_eval history\n{name}")
        assert told.endswith(f"add --input {name}")
    shown = notebook.run("%%gated_eval history --input _\n_ + 1")
    assert shown.displays[1:] == ["43"]
    notebook.run("%%gated_eval history\nfor _ in range(2): _")


def test_what_a_start_up_file_defines_is_the_notebooks(shared_server: Served) -> None:
    """A name or a module that IPython's start-up files bring is refused with its remedy too."""
    file = shared_server.places.root / "ipython" / "profile_default" / "startup" / "00-own.py"
    file.write_text("import math as m\nlimit = 3\n")
    opened = UserNotebook(shared_server)
    file.unlink()
    assert opened.refused("%%gated_eval start\nlimit").endswith("add --input limit")
    assert opened.refused("%%gated_eval start\nm.pi").endswith("add `import math as m` to it")
    opened.run("%%gated_eval start\nopen, exit, quit, get_ipython, __name__")
    opened.close()


def test_a_module_of_the_notebook_is_refused_with_its_import(notebook: UserNotebook) -> None:
    """A module is no input: the remedy is the line that imports it under the same name."""
    notebook.run("import math as m")
    told = notebook.refused("%%gated_eval names\nm.pi")
    assert told.endswith("add `import math as m` to it")


def test_a_traceback_has_the_cells_own_lines(notebook: UserNotebook) -> None:
    """The error of a run shows the lines as they stand in the cell, and no frame of ours."""
    cell = "%%gated_eval breaks\n# first\n\ndef deep(n):\n    return 1 / n\n\ndeep(0)"
    text = notebook.fails(cell).traceback
    assert "----> 7 deep(0)" in text
    assert "----> 5     return 1 / n" in text
    assert "ZeroDivisionError: division by zero" in text
    assert frames(text) == ["cell.py", "cell.py"]


def frames(traceback: str) -> list[str]:
    """The files of a traceback's frames, the outermost first."""
    return re.findall(r'^\s*File "?\S*?([^/\s"]+\.py)\b', traceback, re.MULTILINE)


UNPICKLABLE = {
    "an open file": ("x = open('/dev/null', 'w')", "_io.TextIOWrapper"),
    "a file to read": ("x = open('/etc/hostname')", "_io.TextIOWrapper"),
    "a lock within": ("import threading\nx = {'deep': [threading.Lock()]}", "builtins.dict"),
    "a generator": ("x = (n for n in [1])", "builtins.generator"),
}


@pytest.mark.parametrize(("source", "kind"), UNPICKLABLE.values(), ids=UNPICKLABLE)
def test_an_output_that_cannot_travel_is_named_without_our_frames(
    notebook: UserNotebook, source: str, kind: str
) -> None:
    """The error names the output and its type; who pickles is no business of the user's."""
    text = notebook.fails(f"%%gated_eval outputs --output x\n{source}").traceback
    assert f"TypeError: output `x` ({kind}) cannot be stored: " in text
    assert frames(text) == []
    assert "direct cause" not in text


def test_an_error_in_the_users_own_pickling_is_shown_with_its_line(notebook: UserNotebook) -> None:
    """Where the cell's own code fails while a value is stored, its frame is the one to show."""
    text = notebook.fails(
        "%%gated_eval outputs --output x\nclass A:\n    def __getstate__(self):\n"
        "        return 1 / 0\nx = A()"
    ).traceback
    assert "line 4, in __getstate__" in text
    assert frames(text) == ["cell.py"]
    assert "output `x` (__main__.A) cannot be stored: ZeroDivisionError" in text


def test_a_value_that_cannot_be_kept_is_named_at_the_cells_line(notebook: UserNotebook) -> None:
    """The traceback ends where the cell says `keep`, with the episode's number."""
    text = notebook.fails(
        "%%gated_eval keeps --episodes 2\nfor e in episodes:\n    e.keep(n for n in [1])"
    ).traceback
    assert "----> 3     e.keep(n for n in [1])" in text
    assert "TypeError: the value of episode 0 cannot be kept: " in text
    assert frames(text) == ["cell.py"]
