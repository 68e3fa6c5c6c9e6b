"""A cell in a run finds what a kernel gives to it, or one sentence says that it is not there."""

from __future__ import annotations

import pytest

from tests.integration.cell_process import CellRun, Ended

LOCALES = {
    "by its own variable": {"PYTHONIOENCODING": "ascii"},
    "strictly": {"PYTHONIOENCODING": "latin-1:strict"},
    "an old locale": {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
    "POSIX": {"LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
}


@pytest.mark.parametrize("locale", LOCALES.values(), ids=LOCALES)
def test_what_is_printed_is_utf8_in_every_locale(cell: CellRun, locale: dict[str, str]) -> None:
    """Both streams of the cell and of its processes take any text, half a character included."""
    cell.environment = locale
    cell.source = """
        import multiprocessing, sys
        print("✓ 5 µs", "\\ud83d")
        print("✗ µ", file=sys.stderr)

        def work(x):
            print("→", x)

        for method in ("fork", "spawn", "forkserver"):
            with multiprocessing.get_context(method).Pool(1) as pool:
                pool.map(work, [method])
        """
    ended = cell.run()
    assert ended.code == 0, ended.stderr
    assert ended.stdout.splitlines() == ["✓ 5 µs \\ud83d", "→ fork", "→ spawn", "→ forkserver"]
    assert ended.stderr == "✗ µ\n"


def test_files_keep_the_locales_encoding(cell: CellRun) -> None:
    """What `open` takes for granted is the notebook's, and so is what other programs are told."""
    cell.environment = LOCALES["an old locale"] | {"PYTHONIOENCODING": "ascii"}
    cell.source = """
        import locale, os, sys
        print(sys.stdout.encoding, open("x", "w").encoding == locale.getpreferredencoding(False))
        print(sys.flags.utf8_mode, os.environ["PYTHONIOENCODING"])
        """
    assert cell.run().stdout.splitlines() == ["utf-8 True", "0 ascii"]


# -- the keyboard ----------------------------------------------------------------------------------

ASKS = {
    "input": ("input('Name? ')", "EOFError", "runs have no keyboard to answer `Name?`"),
    "getpass": ("import getpass\ngetpass.getpass()", "EOFError", "runs have no keyboard"),
    "its function": ("from getpass import getpass\ngetpass()", "EOFError", "runs have no keyboard"),
    "breakpoint": ("breakpoint()", "RuntimeError", "runs have no keyboard for a debugger"),
    "pdb": ("import pdb\npdb.set_trace()\nx = 1", "BdbQuit", "runs have no keyboard"),
}


@pytest.mark.parametrize(("source", "kind", "words"), ASKS.values(), ids=ASKS)
def test_whoever_asks_for_input_is_told_that_there_is_none(
    cell: CellRun, source: str, kind: str, words: str
) -> None:
    """The error says that a run has no keyboard, where it is shown and where it is caught."""
    cell.source = source
    ended = cell.run()
    assert (ended.code, ended.error["ename"]) == (1, kind)
    assert words in ended.error["evalue"]
    assert words in "\n".join(ended.error["traceback"])


def test_input_may_come_from_what_the_cell_puts_in_place_of_stdin(cell: CellRun) -> None:
    """A cell that brings its own input is read from; one that expects none may go on."""
    cell.source = """
        import io, sys
        try:
            answer = input()
        except EOFError:
            answer = "none"
        sys.stdin = io.StringIO("3\\n")
        answer, input()
        """
    assert cell.run().plain == ["('none', '3')"]


# -- parameters ------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["lr", "def f():\n    return lr\nf()", "exec('lr')", "del lr"])
def test_a_parameter_used_as_a_variable_is_told_where_it_is(cell: CellRun, source: str) -> None:
    """An error about the name of a `--set` value says how the cell reads it."""
    cell.source = source
    ended = cell.run(parameters={"lr": "0.1"})
    assert ended.error["ename"] == "NameError"
    assert 'the values of `--set` are in `params`: `params["lr"]`' in ended.error["evalue"]
    cell.source = "other"
    assert "params" not in cell.run(parameters={"lr": "0.1"}).error["evalue"]


# -- exported magics -------------------------------------------------------------------------------

#: What an export writes in place of magics, what is printed, and what is displayed.
EXPORTED = {
    "matplotlib": ("run_line_magic('matplotlib', 'inline')", "", []),
    "another backend": ("run_line_magic('matplotlib', 'agg')", "", []),
    "a setting of figures": (
        "run_line_magic('config', \"InlineBackend.figure_format = 'retina'\")",
        "",
        [],
    ),
    "an extension": ("run_line_magic('load_ext', 'autoreload')", "", []),
    "gui": ("run_line_magic('gui', 'asyncio')", "", []),
    "a variable": ("run_line_magic('env', 'A=1')", "env: A=1\n", []),
    "an assignment that is timed": ("run_line_magic('time', 'x = 1')", "Wall time", []),
    "a cell that is timed": ("run_cell_magic('time', '', 'print(2 ** 70)\\n')", str(2**70), []),
    "a shell": ("system('echo shell ✓')", "shell ✓", []),
    "what a shell prints": ("getoutput('echo 1')", "", ["['1']"]),
    "a cell of a shell": ("run_cell_magic('bash', '', 'echo $((6 * 7))\\n')", "42", []),
    "a page": (
        "run_cell_magic('html', '', '<b>x</b>')",
        "",
        ["<IPython.core.display.HTML object>"],
    ),
    "a setting of the page": ("run_line_magic('autosave', '60')", "", []),
    "values on the disk": ("run_line_magic('store', '')", "Stored variables", []),
}


@pytest.mark.parametrize(("line", "printed", "displayed"), EXPORTED.values(), ids=EXPORTED)
def test_the_lines_of_exported_magics_work(
    cell: CellRun, line: str, printed: str, displayed: list[str]
) -> None:
    """A magic that an export has written as a call does what it does in a notebook."""
    cell.source = f"get_ipython().{line}"
    ended = cell.run()
    assert (ended.code, ended.stderr) == (0, "")
    assert printed in ended.stdout
    assert ended.plain == displayed


def figures(ended: Ended) -> list[str]:
    """The kinds of the pictures that were shown."""
    return [kind for shown in ended.of("display") for kind in shown["data"] if "image" in kind]


def test_figures_are_shown_after_an_exported_magic(cell: CellRun) -> None:
    """`%matplotlib inline`, written as a call, shows the figures that the cell leaves open."""
    cell.source = """
        get_ipython().run_line_magic("matplotlib", "inline")
        import matplotlib.pyplot as plt
        plt.plot([1, 2]);
        """
    ended = cell.run()
    assert figures(ended) == ["image/png"], ended.stderr


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("enable_gui('qt')", "runs have no screen for windows of `qt`"),
        ("run_line_magic('nosuch', '')", "Line magic function `%nosuch` not found"),
    ],
)
def test_a_magic_that_cannot_work_fails_with_its_line(cell: CellRun, line: str, words: str) -> None:
    """One sentence says why, and the traceback has the line."""
    cell.source = f"x = 1\nget_ipython().{line}"
    ended = cell.run()
    assert words in ended.error["evalue"]
    assert 'cell.py", line 2, in <module>' in ended.stderr


def test_a_clear_of_an_output_widget_takes_nothing_else_off_the_page(cell: CellRun) -> None:
    """A widget that is cleared leaves the rest of the page; a clear outside it clears the page."""
    cell.source = """
        import ipywidgets
        from IPython.display import clear_output, display
        area = ipywidgets.Output()
        display("before")
        with area:
            clear_output()
            display("inside")
        area.clear_output(wait=True)
        ipywidgets.interact(lambda number: display(number), number=3)
        clear_output()
        """
    ended = cell.run()
    assert ended.code == 0, ended.stderr
    displays = [one for one in ended.of("display") if not one.get("update")]
    assert [one for one in displays if one.get("clear")] == displays[-1:]
    assert [one["data"]["text/plain"] for one in displays[:2]] == ["'before'", "'inside'"]
