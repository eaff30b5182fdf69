"""A sentence classifier and its robustness: trained on text that this file writes, then certified and attacked.

A small transformer reads reviews of ten words and says whether they are good or bad. Two questions are asked of it: how
far may the embedding of one word move, and may words be replaced by others of the same meaning?

Run ``python -m examples.sentences`` (about a minute on one core); ``--out FOLDER`` keeps the model, the data and the
alternatives as files for the command line.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import softhull

# Words of one line mean the same; the first ones are common, the last ones rare.
ALIKE = {
    "this": "this the that",
    "film": "film movie picture feature",
    "plot": "plot story script narrative",
    "cast": "cast acting crew ensemble",
    "was": "was seemed felt appeared",
    "very": "very really truly remarkably",
    "good": "good great fine lovely superb",
    "bad": "bad poor awful dreadful dire",
    "and": "and so",
    "people": "people viewers audiences",
    "loved": "loved liked enjoyed adored",
    "hated": "hated disliked loathed detested",
    "it": "it everything",
    "not": "not",
    ".": ".",
}
RADIUS = 1.0
LENGTH = 10  # this film was not very good and people hated it
GROUPS = [words.split() for words in ALIKE.values()]
WORDS = [word for group in GROUPS for word in group]
NUMBER = {word: number for number, word in enumerate(WORDS)}


@dataclass(frozen=True)
class Reviews:
    """Sentences as numbers of words ``[n, LENGTH]``, and whether they are good."""

    ids: Tensor
    labels: Tensor

    def text(self, i: int) -> str:
        return sentence(self.ids[i].tolist())


def sentence(ids: Sequence[int]) -> str:
    return " ".join(WORDS[number] for number in ids)


def write_reviews(count: int, seed: int) -> Reviews:
    """Sentences from a small grammar; the k-th word of a group is used in proportion to ``1 / (k + 1)^2``."""
    rng = np.random.default_rng(seed)

    def word(kind: str) -> str:
        group = ALIKE[kind].split()
        odds = 1 / np.arange(1, len(group) + 1) ** 2
        return str(rng.choice(group, p=odds / odds.sum()))

    ids, labels = [], []
    for _ in range(count):
        praised, negated = rng.random() < 0.5, rng.random() < 0.4
        good = bool(praised != negated)
        kinds = ["this", str(rng.choice(["film", "plot", "cast"])), "was", *["not"] * negated, "very"]
        kinds += ["good" if praised else "bad", "and", "people", "loved" if good else "hated", "it"]
        kinds += ["."] * (LENGTH - len(kinds))
        ids.append([NUMBER[word(kind)] for kind in kinds])
        labels.append(int(good))
    return Reviews(torch.tensor(ids), torch.tensor(labels))


class Classifier(nn.Module):
    """Embeddings, one layer of attention and one of neurons, the mean over all words, two logits."""

    def __init__(self, size: int = 12, heads: int = 2) -> None:
        super().__init__()
        self.size, self.heads = size, heads
        self.embedding = nn.Embedding(len(WORDS), size)
        self.place = nn.Parameter(0.1 * torch.randn(LENGTH, size))
        self.query, self.key, self.value, self.mix = (nn.Linear(size, size) for _ in range(4))
        self.up, self.down = nn.Linear(size, 2 * size), nn.Linear(2 * size, size)
        self.head = nn.Linear(size, 2)
        self.register_buffer("mean", torch.full((1, LENGTH), 1 / LENGTH))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids) + self.place
        shape = (-1, LENGTH, self.heads, self.size // self.heads)
        q, k, v = (layer(x).reshape(shape).transpose(1, 2) for layer in (self.query, self.key, self.value))
        weights = (q @ k.transpose(2, 3) * (self.size // self.heads) ** -0.5).softmax(-1)
        x = x + self.mix((weights @ v).transpose(1, 2).reshape(-1, LENGTH, self.size))
        x = x + self.down(self.up(x).relu())
        return self.head((self.mean @ x)[:, 0])


def train(reviews: Reviews, steps: int = 250, seed: int = 0) -> Classifier:
    """Plain training on batches of 64."""
    torch.manual_seed(seed)
    model = Classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, weight_decay=1e-4)
    for _ in range(steps):
        batch = torch.randint(0, len(reviews.ids), (64,))
        loss = nn.functional.cross_entropy(model(reviews.ids[batch]), reviews.labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def alternatives(model: Classifier, at_most: int | None) -> softhull.Alternatives:
    """Every word may be any other of its group."""
    words = {NUMBER[word]: [NUMBER[other] for other in group if other != word] for group in GROUPS for word in group}
    return softhull.Alternatives(model.embedding.weight.detach(), words, at_most)


def words_of(model: Classifier, embedded: np.ndarray) -> list[int]:
    """The words whose embeddings stand in an input."""
    table = model.embedding.weight.detach().numpy()
    return [int(np.abs(table - row).sum(1).argmin()) for row in embedded.reshape(LENGTH, -1)]


def counted(found: softhull.Result) -> str:
    """Verdicts in words."""
    return ", ".join(f"{found.count(verdict)} {verdict.value}" for verdict in softhull.Verdict if found.count(verdict))


def main(out: Path | None = None, count: int = 12) -> None:
    """Train, ask both questions of ``count`` sentences, and print what comes out."""
    model = train(write_reviews(1000, seed=1))
    test = write_reviews(count, seed=2)
    with torch.no_grad():
        right = float((model(test.ids).argmax(1) == test.labels).double().mean())
    print(f"{count} sentences of {LENGTH} words, {right:.0%} classified correctly, for example:")
    print(f"  {test.text(0)}\n  {test.text(1)}")
    network = softhull.from_torch(model, test.ids[:1], perturb="embeddings")

    print(f"\nMay the embedding of one word move by {RADIUS:g} in the l_2 norm?")
    for position in range(LENGTH):
        moved = softhull.Perturbation(RADIUS, 2, only=np.arange(LENGTH) == position)
        found = softhull.verify_robustness(network, test.ids, test.labels, moved)
        print(f"  word {position + 1:2d}: {counted(found)}")

    print("\nMay words be replaced by others that mean the same?")
    for at_most in (1, 2, None):
        began = time.process_time()
        found = softhull.verify_robustness(network, test.ids, test.labels, alternatives(model, at_most))
        words = "any number of words" if at_most is None else f"at most {at_most}"
        print(f"  {words}: {counted(found)} ({time.process_time() - began:.1f} CPU s)")
    for record in found.records:
        if record.counterexample is not None:
            print(f"  {test.text(record.index)}\n  becomes\n  {sentence(words_of(model, record.counterexample))}")
            break
    if out is not None:
        write_files(out, model, test)


def write_files(out: Path, model: Classifier, test: Reviews) -> None:
    """The model, the data and the alternatives for the command line."""
    out.mkdir(parents=True, exist_ok=True)
    asked = alternatives(model, None)
    pairs = np.array([(word, other) for word, others in asked.words.items() for other in others])
    np.savez(out / "sentences.npz", x=test.ids.numpy(), y=test.labels.numpy())
    np.savez(out / "alternatives.npz", embeddings=asked.embeddings.astype(np.float32), pairs=pairs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter warns of its own parts
        file = str(out / "sentences.onnx")
        torch.onnx.export(model, (test.ids[:1],), file, dynamo=True, verbose=False, external_data=False)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, help="A folder for the model, the data and the alternatives.")
    parser.add_argument("--count", type=int, default=12, help="How many sentences are asked about.")
    given = parser.parse_args()
    main(given.out, given.count)
