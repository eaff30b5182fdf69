"""A disk that fills up for real: a small file system in memory, where the machine lets us mount one."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from softhull.runs.rows import Row
from softhull.runs.store import Store

from .campaigns import command, one_line, run_here, write_campaign

# A namespace of its own: the mount is seen by nobody else and gone with the last process in it. What is left on the
# full disk is copied out before.
SMALL_DISK = """
mount -t tmpfs -o size=$1 none "$2" || exit 99
cp "$3"/runs.db* "$2"
"${@:4}"
code=$?
cp "$2"/runs.db* "$3"
exit $code
"""


def in_small_disk(size: int, disk: Path, home: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    mounting = ["unshare", "--map-root-user", "--mount", "bash", "-c", SMALL_DISK, "bash"]
    return subprocess.run(
        [*mounting, str(size), str(disk), str(home), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """An empty folder that a small disk can be mounted on."""
    folder, home = tmp_path / "disk", tmp_path / "home"
    folder.mkdir()
    home.mkdir()
    (home / "runs.db").touch()
    if shutil.which("unshare") is None:
        pytest.skip("there is no unshare to mount a small disk with")
    tried = in_small_disk(1 << 20, folder, home, "true")
    if tried.returncode:
        pytest.skip(f"this machine does not let us mount a small disk: {tried.stderr.strip()}")
    return folder


def known(store: Path) -> dict[str, Row]:
    with Store.read(store) as opened:
        return {row.key: row for row in opened.rows()}


def test_nothing_that_was_stored_is_lost_when_the_disk_is_full(tmp_path: Path, disk: Path) -> None:
    home = tmp_path / "store"
    home.mkdir()
    store = home / "runs.db"
    campaign = write_campaign(tmp_path, 60, eps="[0.02]", batch=4)
    full = campaign.read_text()
    campaign.write_text(full.replace('file = "data.npz"', 'file = "data.npz"\nindices = "0:8"'))
    run_here(campaign, store, batch=4)
    before = known(store)
    campaign.write_text(full)
    size = sum(file.stat().st_size for file in home.iterdir()) + (400 << 10)
    done = in_small_disk(size, disk, home, *command("run", campaign, "--store", disk / "runs.db", "--quiet"))
    assert "disk is full" in one_line(done)
    after = known(store)
    assert len(before) < len(after) < 60 * len(before) // 8
    assert {key: after[key] for key in before} == before
    run_here(campaign, store, batch=4)  # with room again it goes on where it stopped
    whole = known(store)
    assert len(whole) == 60 * len(before) // 8
    assert {key: whole[key] for key in after} == after
