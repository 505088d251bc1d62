"""The window of `--show`, by tkinter."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from ..errors import BackendUnavailableError

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["Window"]


class Window:
    """Shows one image after another. It is used by the main thread.

    Raises:
        BackendUnavailableError: there is no display, or tkinter is not installed.
    """

    def __init__(self) -> None:
        try:
            import tkinter
        except ImportError as error:
            raise BackendUnavailableError(
                f"--show needs tkinter, which is not installed ({error}): apt install python3-tk; or write the "
                "results with -o"
            ) from None
        try:
            self._root = tkinter.Tk()
        except tkinter.TclError as error:
            raise BackendUnavailableError(f"--show needs a display: {error}; write the results with -o") from None
        self._label = tkinter.Label(self._root, borderwidth=0)
        self._label.pack()
        self._root.protocol("WM_DELETE_WINDOW", self._close)
        self._root.bind("q", lambda event: self._close())
        for key in ("<space>", "<Return>"):
            self._root.bind(key, lambda event: self._root.quit())  # ends mainloop()
        self._open = True
        self._shown: Any = None  # tkinter keeps no reference to an image

    def show(self, title: str, image: Image.Image, *, wait: bool) -> None:
        """Shows an image, as large as the screen at most; nothing once the window was closed. With `wait` this returns
        when space or return is pressed; q closes the window.
        """
        if not self._open:
            return
        from PIL import ImageTk

        limit = self._root.winfo_screenwidth() * 9 // 10, self._root.winfo_screenheight() * 9 // 10
        if image.width > limit[0] or image.height > limit[1]:
            image = image.copy()
            image.thumbnail(limit)
        self._shown = ImageTk.PhotoImage(image, master=self._root)
        self._label.configure(image=self._shown)
        self._root.title(title)
        self._root.update()
        if wait and self._open:
            print("space: the next image; q: close the window", file=sys.stderr)
            self._root.mainloop()

    def _close(self) -> None:
        self._open = False
        self._root.quit()

    def __enter__(self) -> Window:
        return self

    def __exit__(self, *exc: object) -> None:
        self._root.destroy()
