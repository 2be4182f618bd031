"""The process that talks to Weights & Biases, so that nothing which happens there can reach the training.

It is run as a script, by itself: it imports wandb and the standard library alone. It reads a JSON object per line:
first what the run is, then rows; and writes some: `said` (for the log), `failed`, `done`.
"""

from __future__ import annotations

import json
import netrc
import os
import signal
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, TextIO

SERVER = "https://api.wandb.ai"
PROBE_SECONDS = 5.0
INIT_SECONDS, DOUBTFUL_SECONDS = 60.0, 10.0  # to begin online; where the server does not answer a plain request
LAST_SECONDS = 120  # to upload what there is after the training was killed


def main() -> None:
    """Serve one session of a run."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    out = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)  # whatever wandb prints goes elsewhere
    lines = os.fdopen(os.dup(0), encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # nothing can be asked
    try:
        _serve(lines, out)
    except BaseException as error:
        _tell(out, failed=f"{type(error).__name__}: {error}")
        os._exit(1)  # without waiting for threads that hang
    _tell(out, done=True)


def _serve(lines: TextIO, out: TextIO) -> None:
    given = json.loads(lines.readline())
    run, said = _start(given)
    _tell(out, said=said)
    code = 1  # the training was killed, if nothing says otherwise
    for line in lines:
        message = json.loads(line)
        if "row" in message:
            run.log(message["row"])
        else:
            run.summary.update(message["summary"])
            code = message["code"]
            break
    else:
        signal.alarm(LAST_SECONDS)
    run.finish(exit_code=code)


def _start(given: dict[str, Any]) -> tuple[Any, str]:
    """The run, and a line for the log."""
    os.environ["WANDB_SILENT"] = "true"
    import wandb

    mode = given.pop("mode")
    why = "as asked"
    if mode == "auto":
        mode, why = _mode()
    doubtful = mode == "online" and not _answers(os.environ.get("WANDB_BASE_URL") or SERVER)
    seconds = DOUBTFUL_SECONDS if doubtful else INIT_SECONDS
    settings = wandb.Settings(silent=True, console="off", init_timeout=seconds)
    given |= {"resume": "allow", "settings": settings}
    try:
        run = wandb.init(mode=mode, **given)
    except Exception as error:
        if mode != "online":
            raise
        why = f"online it failed: {' '.join(str(error).split())}"
        mode, run = "offline", wandb.init(mode="offline", **given)
    run.define_metric("step")
    run.define_metric("*", step_metric="step")
    hint = f"; `wandb sync {run.dir.removesuffix('/files')}` uploads it" if mode == "offline" else ""
    return run, f"wandb: run {run.id}, {mode} ({why}){hint}"


def _mode() -> tuple[str, str]:
    """How to run, and why."""
    asked = os.environ.get("WANDB_MODE")
    if asked:
        return asked, "WANDB_MODE"
    server = os.environ.get("WANDB_BASE_URL") or SERVER
    if not _has_key(server):
        return "offline", "there is no key"
    if not _answers(server):
        return "offline", f"{server} cannot be reached"
    return "online", "there is a key"


def _has_key(server: str) -> bool:
    """Whether wandb would log in without asking: by the environment, its own settings, or netrc."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    try:
        import wandb

        if wandb.api.api_key:
            return True
    except Exception:  # no part of what wandb promises
        pass
    try:
        return (
            netrc.netrc(os.environ.get("NETRC")).authenticators(urllib.parse.urlsplit(server).hostname or "")
            is not None
        )
    except (OSError, netrc.NetrcParseError):
        return False


def _answers(server: str) -> bool:
    try:
        urllib.request.urlopen(server, timeout=PROBE_SECONDS).close()
    except urllib.error.HTTPError:
        return True
    except (OSError, ValueError):
        return False
    return True


def _tell(out: TextIO, **what: object) -> None:
    out.write(json.dumps(what) + "\n")
    out.flush()


if __name__ == "__main__":
    main()
