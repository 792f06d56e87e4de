"""What the README says is run, and the files it names are there."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def commands():
    lines = [
        line.split("  #")[0].strip() for block in blocks("bash") for line in block.splitlines()
    ]
    return [line for line in lines if line.startswith(".venv/bin/vizattn")]


def test_the_python_lines_run_as_they_stand(tmp_path):
    code = "\n".join(blocks("python")).replace("assets/", f"{ROOT}/assets/")
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "what the patch at row" in done.stdout
    assert (tmp_path / "cat.npz").exists()


@pytest.mark.parametrize("command", commands())
def test_every_command_runs_as_it_stands(command, tmp_path):
    words = [sys.executable, "-m", "vizattn", *shlex.split(command)[1:]]
    words = [str(ROOT / word) if word.startswith("assets/") else word for word in words]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_there_are_commands_to_run():
    assert len(commands()) >= 3


@pytest.mark.parametrize(
    "page", ["README.md", "CONTRIBUTING.md", *map(str, ROOT.glob("docs/*.md"))]
)
def test_links_lead_to_files_that_are_there(page):
    path = ROOT / page
    for target in re.findall(r"\]\(([^)#]+)", path.read_text()):
        if "://" not in target:
            assert (path.parent / target).exists(), f"{page} -> {target}"


def test_the_space_reads_its_settings_from_the_top():
    front = README.split("---")[1]
    for line in ("sdk: gradio", "app_file: app.py", "license: apache-2.0"):
        assert line in front
