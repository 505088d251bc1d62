"""Pages: one HTML file each, which opens without a network, from Jinja2 templates and plots that Vega draws.

All pages share `report.css`, `report.js`, `base.html.j2` and the macros of `parts.html.j2`. A plot is a Vega
specification, a `.vg.json` file that any Vega editor opens; `vl-convert` runs Vega itself and gives SVG, whose colours
are the page's CSS variables. A page shows its plots without scripts, and contains no plotting library.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import BackendUnavailableError

__all__ = ["draw", "render", "require_packages"]

_FOLDER = Path(__file__).resolve().parent
#: The style of all plots.
_STYLE = {
    "background": None,
    "font": "system-ui, sans-serif",
    "axis": {
        "domainColor": "var(--soft)", "gridColor": "var(--grid)", "labelColor": "var(--soft)", "labelFontSize": 11,
        "labelPadding": 10, "ticks": False, "titleColor": "var(--soft)", "titleFontSize": 12,
        "titleFontWeight": "normal", "titlePadding": 12,
    },
}  # fmt: skip


def require_packages(*, plots: bool = True) -> None:
    """Checks the packages for a page before any work.

    Args:
        plots: whether the page has plots.

    Raises:
        BackendUnavailableError: Jinja2 or vl-convert is not installed.
    """
    try:
        import jinja2  # noqa: F401

        if plots:
            import vl_convert  # noqa: F401
    except ImportError as error:
        raise BackendUnavailableError(
            f'HTML pages need jinja2, their plots vl-convert-python ({error}): pip install "infersdk[bench]"'
        ) from None


def render(template: Path, data: Any, **context: Any) -> str:
    """The page of a template that extends `base.html.j2`. Values of the context are escaped.

    Args:
        data: kept in the page as JSON, for programs.
        context: the template's variables.

    Raises:
        BackendUnavailableError: see `require_packages`.
    """
    require_packages(plots=False)
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader([template.parent, _FOLDER]), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    environment.policies["json.dumps_kwargs"] = {}  # keeps the order of keys
    page: str = environment.get_template(template.name).render(**context, data=data)
    return page


def draw(
    plot: str,
    rows: Mapping[str, Sequence[Mapping[str, Any]]],
    *,
    scales: Mapping[str, str] | None = None,
    height: float | None = None,
    **signals: Any,
) -> Any:
    """A plot as SVG, marked as safe for a template.

    Args:
        plot: the specification's name: `"scatter"` for `scatter.vg.json`.
        rows: by name of a data set of the specification.
        scales: by name of a scale, another type for it: `{"y": "linear"}`.
        height: in pixels, in place of the height of the specification.
        signals: by name of a signal, its value.

    Raises:
        BackendUnavailableError: see `require_packages`.
    """
    require_packages()
    import vl_convert
    from markupsafe import Markup

    specification = json.loads((_FOLDER / f"{plot}.vg.json").read_text()) | {"config": _STYLE}
    _set(specification["data"], "values", {name: list(values) for name, values in rows.items()})
    _set(specification.get("scales", []), "type", scales or {})
    _set(specification.get("signals", []), "value", signals)
    if height is not None:
        specification["height"] = height
    return Markup(vl_convert.vega_to_svg(specification))


def _set(entries: list[dict[str, Any]], key: str, values: Mapping[str, Any]) -> None:
    by_name = {entry["name"]: entry for entry in entries}
    for name, value in values.items():
        by_name[name][key] = value
