"""What the package promises as a whole: its names, how light it is, and one version."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from jaxtyping import TypeCheckError

ROOT = Path(__file__).parent.parent
HEAVY = ("torch", "timm", "gradio", "matplotlib.pyplot", "torchvision", "transformers")


def fresh(code):
    """Run in a process of its own and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )
    return done.stdout.strip()


def loaded(code):
    return fresh(f"import sys\n{code}\nprint([m for m in {HEAVY} if m in sys.modules])")


def test_importing_vizattn_loads_nothing_heavy():
    assert loaded("import vizattn") == "[]"


def test_this_check_sees_a_heavy_import():
    assert "torch" in loaded("import vizattn; vizattn.TokenGrid")


def test_the_help_text_loads_nothing_heavy():
    code = "import vizattn.cli as cli\ntry: cli.app(['--help'])\nexcept SystemExit: pass"
    assert loaded(code).splitlines()[-1] == "[]"


def test_every_public_name_is_there_and_nothing_else_is_offered():
    code = "import vizattn\nfor n in vizattn.__all__: getattr(vizattn, n)\nprint(dir(vizattn))"
    import vizattn

    assert fresh(code) == str(vizattn.__all__)
    assert len(set(vizattn.__all__) - {"__version__"}) <= 24


@pytest.mark.parametrize("room", ["capture", "explain", "overlay"])
def test_a_function_named_like_its_room_stays_a_function(room):
    code = f"import vizattn.{room}, vizattn.explain, vizattn\nprint(callable(vizattn.{room}))"
    assert fresh(code) == "True"


def test_an_unknown_name_is_an_attribute_error():
    import vizattn

    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = vizattn.nothing


def test_there_is_one_version():
    import vizattn

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    newest = next(
        line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## ")
    )
    assert vizattn.__version__ == project["version"]
    assert vizattn.__version__ in newest


def test_the_space_installs_what_the_package_needs():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = [
        line.split("#")[0].strip()
        for line in (ROOT / "requirements.txt").read_text().splitlines()
        if line.split("#")[0].strip()
    ]
    assert sorted(listed) == sorted(project["dependencies"])


def test_shapes_are_checked_while_the_tests_run():
    from vizattn.attention import attention_scores

    with pytest.raises(TypeCheckError):
        attention_scores(torch.ones(3, 4, 2), torch.ones(2, 5, 2))
