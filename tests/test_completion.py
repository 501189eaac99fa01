"""Completion in a shell, as ``tacit --install-completion`` sets it up."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

# what bash does when Tab is pressed: the completion of the last word
TAB = """
source "$HOME/.bashrc"
COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); COMP_LINE="{words}"; COMP_POINT=${{#COMP_LINE}}
declare -F _tacit_completion > /dev/null && _tacit_completion tacit
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture
def home(tmp_path) -> dict[str, str]:
    """An environment with a home of its own, in which ``tacit`` is this one."""
    program = tmp_path / "bin" / "tacit"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tacit "$@"\n')
    program.chmod(0o755)
    return {**os.environ, "HOME": str(tmp_path), "PATH": f"{program.parent}:{os.environ['PATH']}", "SHELL": "/bin/bash"}


def bash(script: str, home: dict[str, str]) -> list[str]:
    # with a command after it, bash stays the parent of what it runs: completion is set up for the parent's shell
    kept = f"{script}\nexit $?"
    done = subprocess.run(["bash", "-c", kept], env=home, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes_commands_and_options_once_it_is_installed(home):
    (Path(home["HOME"]) / ".bashrc").touch()
    bash("tacit --install-completion", home)
    assert set(bash(TAB.format(words="tacit re"), home)) == {"report"}
    assert {"run", "plan", "audit", "federation"} <= set(bash(TAB.format(words="tacit ''"), home))
    assert "--mlflow" in bash(TAB.format(words="tacit run --ml"), home)
