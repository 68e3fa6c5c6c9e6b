"""The pictures of the scorecard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.scorecard.study import COLD, NOTHING, ORACLE, ORDER, SHORTEST, WARM

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from matplotlib.axes import Axes

    from tests.scorecard.figures import Figures
    from tests.scorecard.study import Outcome

OURS, PEERS, BEST, RECKLESS = "#1f6f8b", "#b9c0c7", "#7a9e4e", "#c9704b"
COLOURS: Final = {COLD: OURS, WARM: OURS, ORACLE: BEST, SHORTEST: BEST, NOTHING: RECKLESS}
#: The figures that are drawn: a file's name, a title, and the value.
DRAWN: Final[tuple[tuple[str, str, Callable[[Figures], float]], ...]] = (
    ("waits", "Mean wait (minutes)", lambda figures: figures.wait_mean_s / 60),
    ("ooms", "Attempts that ran out of memory", lambda f: f.own_cap + f.device_full),
    ("wasted", "GB-hours charged and not used", lambda figures: figures.wasted_gb_h),
)


def draw(outcomes: Mapping[str, Outcome], folder: Path) -> dict[str, Path]:
    """Draw each figure by policy, a panel per machine; return the files by their titles."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "scorecard", "svg.fonttype": "none", "font.size": 8})
    from matplotlib import pyplot as plt

    folder.mkdir(parents=True, exist_ok=True)
    files = {}
    for name, title, value in DRAWN:
        figure, panels = plt.subplots(1, len(outcomes), figsize=(9, 2.4), sharey=True)
        for panel, (machine, outcome) in zip(panels, outcomes.items(), strict=True):
            _bars(panel, machine, {policy: value(outcome[policy]) for policy in ORDER})
        figure.suptitle(title)
        figure.tight_layout()
        files[title] = folder / f"scorecard-{name}.svg"
        # Without a date the same figures make the same file.
        figure.savefig(files[title], metadata={"Date": None})
        plt.close(figure)
    return files


def _bars(panel: Axes, machine: str, values: Mapping[str, float]) -> None:
    panel.set_title(machine)
    places = range(len(values))
    panel.barh(places, list(values.values()), color=[COLOURS.get(p, PEERS) for p in values])
    panel.set_yticks(places, list(values))
    panel.invert_yaxis()
    panel.spines[["top", "right"]].set_visible(False)
    for place, value in zip(places, values.values(), strict=True):
        panel.annotate(f" {value:.3g}", (value, place), va="center", fontsize=7)
