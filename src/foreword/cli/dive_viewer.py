"""The terminal viewer of ``foreword dive``: layers on the left, content on the right (extra ``tui``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from foreword.errors import ConfigError
from foreword.report.layers import Dive


def view(dives: Sequence[Dive]) -> None:
    """Open the viewer; raises ConfigError where the extra is missing."""
    make_app(dives).run()


def make_app(dives: Sequence[Dive]) -> Any:
    """The Textual application; arrows move, the content of a layer follows the cursor, q leaves."""
    try:
        from textual.app import App
        from textual.containers import Horizontal, VerticalScroll
        from textual.widgets import DataTable, Footer, Static
    except ImportError:
        raise ConfigError(
            "The viewer needs the extra `tui`.", hint="pip install 'foreword[tui]', or use --plain or --html."
        ) from None

    rows = [(one, layer) for one in dives for layer in one.layers]

    class Viewer(App):  # type: ignore[misc, type-arg, unused-ignore]
        """Layers and their content."""

        BINDINGS: ClassVar[list[Any]] = [("q", "quit", "Quit")]
        CSS = "DataTable { width: 1fr; } VerticalScroll { width: 1fr; border-left: solid $primary; padding: 0 1; }"

        def compose(self) -> Any:
            """The two panes."""
            with Horizontal():
                yield DataTable(cursor_type="row", id="layers")
                with VerticalScroll():
                    yield Static(id="content", markup=False)
            yield Footer()

        def on_mount(self) -> None:
            """Fill the table."""
            table = self.query_one("#layers", DataTable)
            table.add_columns("request", "layer", "start", "tokens", "state")
            for one, layer in rows:
                table.add_row(
                    one.source.rpartition("/")[2], layer.name, f"{layer.start:,}", f"{layer.tokens:,}", layer.state
                )
            table.focus()

        def on_data_table_row_highlighted(self, event: Any) -> None:
            """Show the layer under the cursor."""
            if event.cursor_row < len(rows):
                self.query_one("#content", Static).update(rows[event.cursor_row][1].text)

    return Viewer()
