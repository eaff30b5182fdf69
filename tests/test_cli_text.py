"""The commands on a model of token ids and a mask: fixed inputs, a cut, words, alternatives, stores and campaigns."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from softhull.checker.check import check_certificate
from softhull.cli.app import app
from softhull.formats.onnx import load_onnx

from .formats.test_cut import MASK, WORDS, text_model


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    table = text_model(tmp_path / "text.onnx")
    network = load_onnx(tmp_path / "text.onnx", {"mask": MASK}, "embeddings")
    assert network.front is not None
    ids = np.random.default_rng(5).integers(0, WORDS, (6, 3)).astype(np.uint8)
    y = network.replay(network.front.compute(ids[:, None]))[:, 0].argmax(1)
    np.savez(tmp_path / "text.npz", x=ids, y=y)
    np.save(tmp_path / "mask.npy", MASK)
    np.save(tmp_path / "word.npy", np.array([0, 1, 0]))
    pairs = np.array([(k, (k + 1) % WORDS) for k in range(WORDS)])
    np.savez(tmp_path / "words.npz", embeddings=table, pairs=pairs)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(arguments: str) -> Result:
    return CliRunner().invoke(app, arguments.split())


TEXT = "text.onnx --data text.npz --fix mask=mask.npy --perturb embeddings"


@pytest.mark.parametrize(
    "region",
    ["--eps 0.001 --only word.npy --norm 2", "--alternatives words.npz --at-most 1", "--alternatives words.npz"],
)
def test_verdicts_certificates_and_stores(region: str, folder: Path) -> None:
    done = run(f"verify {TEXT} {region} --certificates proofs --json out.json")
    assert done.exit_code == 0, done.output
    answer = json.loads((folder / "out.json").read_text())
    assert answer["summary"]["misclassified"] == answer["summary"]["error"] == answer["summary"]["unknown"] == 0
    (cut,) = (folder / "proofs").glob("text-*.onnx")
    assert f"certificates are about {cut.relative_to(folder)}" in done.stderr
    proofs = list((folder / "proofs").glob("*.npz"))
    assert len(proofs) == sum(record.get("certificate") is not None for record in answer["instances"]) > 0
    assert all(check_certificate(proof, [cut]).accepted for proof in proofs)
    first = run(f"verify {TEXT} {region} --store runs.db --json first.json")
    again = run(f"verify {TEXT} {region} --store runs.db --json again.json")
    assert (first.exit_code, again.exit_code) == (0, 0)
    known = json.loads((folder / "again.json").read_text())["instances"]
    assert all(record["from_store"] for record in known)
    assert [r["verdict"] for r in known] == [r["verdict"] for r in answer["instances"]]


def test_other_questions(folder: Path) -> None:
    for command in ("uncertainty", "dataset"):
        done = run(f"{command} {TEXT} --alternatives words.npz --indices 0:2")
        assert done.exit_code == 0, done.output


def test_a_campaign(folder: Path) -> None:
    (folder / "campaign.toml").write_text(
        """
        [[networks]]
        model = "text.onnx"
        perturb = "embeddings"
        fix = {mask = "mask.npy"}
        [[data]]
        file = "text.npz"
        [[perturbations]]
        eps = 0.001
        only = "word.npy"
        [[perturbations]]
        alternatives = "words.npz"
        at_most = [1, 2]
        [[questions]]
        ask = "robustness"
        [run]
        executor = "local:1"
        """
    )
    done = run("run campaign.toml --quiet")
    assert done.exit_code == 0, done.output
    assert len(json.loads(run("results runs.db --format json").output)) == 18


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("verify text.onnx --data text.npz --eps 0.1", "fix all inputs ('ids', 'mask') but one"),
        ("verify text.onnx --data text.npz --eps 0.1 --fix mask", "'mask' is not NAME=FILE"),
        ("verify text.onnx --data text.npz --eps 0.1 --fix mask=text.npz", "text.npz: damaged"),
        (f"verify {TEXT} --alternatives words.npz --eps 0.1", "a region of its own"),
        (f"verify {TEXT} --alternatives text.npz", "holds no array 'embeddings'"),
        (f"verify {TEXT} --eps 0.1 --at-most 1", "--at-most belongs to --alternatives"),
        (f"verify {TEXT} --alternatives words.npz --radius", "a set of alternatives has no radius"),
        (f"uncertainty {TEXT}", "name --eps"),
    ],
)
def test_mistakes_are_one_line(arguments: str, said: str, folder: Path) -> None:
    done = run(arguments)
    assert done.exit_code == 2
    assert said in done.output
    assert len(done.output.strip().splitlines()) == 1


def test_notes_are_said_once_and_kept_in_the_records(folder: Path) -> None:
    done = run(f"verify {TEXT} --eps 9 --no-attack --json out.json")
    assert done.output.count("softhull: note: eps = 9 is more than the inputs can differ") == 1
    assert "1/255" in json.loads((folder / "out.json").read_text())["notes"][0]
