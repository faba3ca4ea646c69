"""Curves as pictures: SVG, the same bytes for the same numbers."""

from pathlib import Path

from nanochat.paths import whole_file

COLORS = ("#2a6fdb", "#d1495b", "#2e8b57", "#8a5fbf")  # readable on white and on grey


def draw(curve: dict, path: Path) -> None:
    """Draw {"title", "x", "y", "series": name -> [xs, ys]}: dense series as lines, sparse ones with marks."""
    import matplotlib  # slow, and a card without curves does not need it
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": path.name, "svg.fonttype": "none", "font.family": "sans-serif"}):
        figure = Figure(figsize=(7, 3.6), layout="constrained")
        axes = figure.subplots()
        for color, (name, (xs, ys)) in zip(COLORS * len(curve["series"]), curve["series"].items(), strict=False):
            axes.plot(xs, ys, label=name, color=color, linewidth=1.4, marker="o" if len(xs) < 40 else "", markersize=3)
        axes.set(title=curve["title"], xlabel=curve["x"], ylabel=curve["y"])
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        if len(curve["series"]) > 1:
            axes.legend(frameon=False)
        with whole_file(path) as part:
            figure.savefig(part, format="svg", metadata={"Date": None})
