"""`RunView`: a run's view as a thread of its own, so that neither a slow terminal nor a slow picture delays whoever supervises the run.

A picture in a terminal, plain lines elsewhere. It reads the run's files and the controller's status; it shares nothing with the launcher.
"""

from __future__ import annotations

import threading
from collections import deque
from types import TracebackType

from rich.console import Console

from asyncflow.config import RunConfig
from asyncflow.observe.live.canvas import Canvas
from asyncflow.observe.live.console import LEAST_HEIGHT, can_show_a_picture, make_console
from asyncflow.observe.live.follow import RunState
from asyncflow.observe.live.lines import Lines
from asyncflow.observe.live.marks import marks_for
from asyncflow.observe.live.picture import picture
from asyncflow.observe.live.snapshot import Snapshot, workers_now
from asyncflow.observe.live.status import StatusPoll

FRAME_S = 0.5  # between two looks
CLOSE_S = 5.0  # how long the end of a run waits for a terminal that takes nothing
MOST_SAID = 1000  # lines that wait for it; older ones are lost first


class RunView:
    """A context manager. `say` prints one line, above the picture where there is one; it never waits for the terminal while the view is open."""

    def __init__(self, config: RunConfig, key: str | None = None, console: Console | None = None, ask: bool = False) -> None:
        """`config.run.dir` is the directory to read; `key` the file that opens a controller with keys. `ask`: whether to ask the controller
        also where only lines are shown, which need no status."""
        self.console = console or make_console()
        self.state = RunState(config.run_dir)
        self.status = StatusPoll(config.run_dir, key)
        self._config = config
        self._picture = config.observe.view == "auto" and can_show_a_picture(self.console)
        self._ask = ask or self._picture
        self._lines = Lines(config.total_steps)
        self._said: deque[str] = deque(maxlen=MOST_SAID)
        self._news, self._over = threading.Event(), threading.Event()
        self._ended: str | None = None
        self._thread = threading.Thread(target=self._run, name="view", daemon=True)  # a terminal that hangs must not keep the process

    def say(self, text: str) -> None:
        if self._thread.is_alive():
            self._said.append(text)
            self._news.set()
        else:
            self._print(text)

    def end(self, reason: str) -> None:
        """The run is over: the last picture says why."""
        self._ended = reason

    def show_now(self, timeout_s: float = 2.0) -> None:
        """The state as it is, once, without a thread; waits at most `timeout_s` for the controller's status."""
        while self.state.advance():
            pass
        self.status.wait(timeout_s)
        self.status.close()
        self.console.print(picture(self.snapshot(), self.console.width, max(self.console.height, LEAST_HEIGHT)))

    def __enter__(self) -> RunView:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """The last state stays on the screen."""
        self._over.set()
        self._news.set()
        self._thread.join(CLOSE_S)
        if not self._thread.is_alive():
            self._print_said()  # what came after the thread's last look

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        try:
            if self._picture:
                with Canvas(self.console) as canvas:
                    self._frames(canvas)
            else:
                self._frames(None)
        except Exception as error:  # a defect of the view's own: whatever it is, the run goes on and is still told of, in lines
            self._print(f"the view failed and goes on as plain lines: {type(error).__name__}: {error}")
            self._frames(None)
        finally:
            self.status.close()

    def _frames(self, canvas: Canvas | None) -> None:
        while not self._over.is_set():
            self._frame(canvas)
            self._news.wait(FRAME_S)
            self._news.clear()
        while self.state.advance():  # the files are whole now
            pass
        self._frame(canvas)

    def _frame(self, canvas: Canvas | None) -> None:
        self._print_said()
        self.state.advance()
        if self._ask:
            self.status.advance()
        if canvas is None:
            if (line := self._lines.due(self.state.step)) is not None:
                self._print(line)
            return
        canvas.show(picture(self.snapshot(), canvas.room, self.console.height))

    def snapshot(self) -> Snapshot:
        """What is known now. For the view's thread, or for a view that was not entered."""
        ended = self._ended is not None
        status = None if ended else self.status.latest  # of a run that ended, the files say more than the last answer
        return Snapshot(
            config=self._config,
            state=self.state,
            status=status,
            status_age_s=self.status.age_s(),
            problem=self.status.problem,
            workers=workers_now(self._config, self.state, status, ended),
            marks=marks_for(self.console.encoding),
            ended=self._ended,
        )

    def _print_said(self) -> None:
        while self._said:
            self._print(self._said.popleft())

    def _print(self, text: str) -> None:
        self.console.print(text, markup=False)
