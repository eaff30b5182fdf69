"""A campaign file: networks x data x perturbations x methods x questions, written in TOML."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..data import bundled
from ..errors import CampaignError, InvalidInput, SofthullError
from .questions import QUESTIONS, Question, find_question
from .tasks import Model, Task
from .worker import ModelFile

if TYPE_CHECKING:
    from ..formats.datasets import Dataset
    from ..formats.network import Network

LARGEST_FILE = 1 << 20
MOST_TASKS = 10_000
STORE = "runs.db"  # unless it is named
BUNDLED = "softhull:"  # in front of a file that comes with the package

_KEYS = {
    "networks": ("name", "model", "models", "fix", "perturb", "output"),
    "data": ("name", "file", "labels", "indices"),
    "perturbations": ("eps", "norm", "clip", "normalize", "only", "lower", "upper", "alternatives", "at_most"),
    "run": ("store", "executor", "timeout", "budget", "memory", "device", "batch"),
}
_NEEDED = {"networks": (), "data": ("file",), "perturbations": (), "methods": ("name",), "questions": ("ask",)}
_SECTIONS = (*_NEEDED, "run")
_HERE = re.compile(r"local(:[0-9]{1,3})?")  # executors that open no port


@dataclass(frozen=True)
class Work:
    """A task with the instances it is about."""

    task: Task
    dataset: Dataset = field(repr=False)
    indices: list[int] = field(repr=False)


@dataclass(frozen=True)
class Campaign:
    """All tasks of a campaign, the networks they need by hash, and what the file says about the run itself."""

    path: str
    works: tuple[Work, ...]
    models: dict[str, ModelFile]
    run: dict[str, Any]

    def __len__(self) -> int:
        return sum(len(work.indices) for work in self.works)


def load_campaign(path: str | Path) -> Campaign:
    """Read a campaign and everything it names; CampaignError says which key of the file to change, and how."""
    reader = _Reader(Path(path))
    try:
        return reader.campaign()
    except CampaignError:
        raise
    except SofthullError as problem:  # a network or a data set: the message names it already
        raise CampaignError(f"{path}: {reader.place}: {problem}") from None


def store_of(campaign: str | Path, name: Any) -> Path:
    """The store that a campaign file names, in its own folder; any other place only on the command line."""
    folder = Path(campaign).absolute().parent
    place = folder / str(name)
    # SQLite writes beside the store, too, and follows links.
    written = [Path(f"{place}{end}") for end in ("", "-wal", "-shm", "-journal")]
    home = folder.resolve()
    try:
        inside = isinstance(name, str) and all(file.resolve().is_relative_to(home) for file in written)
    except (ValueError, OSError, RuntimeError):  # a name that is none, links in a circle
        inside = False
    if not inside:
        raise CampaignError(
            f"{campaign}: run.store: {str(name)[:80]!r} is not a file in the folder of the campaign; "
            "another place only on the command line, with --store"
        )
    return place


class _Reader:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.place = ""
        self.content = _read(path)
        for section in self.content:
            if section not in _SECTIONS:
                raise CampaignError(f"{path}: unknown section {section!r}; known: {', '.join(_SECTIONS)}")
        self.networks: dict[str, list[Network]] = {}
        self.data: dict[str, tuple[Dataset, list[int]]] = {}
        self.prepared: dict[tuple[str, str], Dataset] = {}

    def campaign(self) -> Campaign:
        """Reads the whole file; an error names the place in it."""
        run = self.content.get("run", {})
        if not isinstance(run, dict):
            self.fail("run", "write [run], not [[run]]")
        self._known("run", "run", run)
        self._allowed(run)
        for place, entry in self._entries("networks"):
            self._network(place, entry)
        for place, entry in self._entries("data"):
            self._dataset(place, entry)
        perturbations = [
            p for place, entry in self._entries("perturbations") for p in self._perturbations(place, entry)
        ]
        methods = list(self._entries("methods")) if "methods" in self.content else []
        for place, entry in methods:
            for name in _listed(entry["name"]):
                self._method_name(f"{place}.name", name)
        works: list[Work] = []
        used: set[str] = set()
        for place, entry in self._entries("questions"):
            works += self._question(place, entry, perturbations, methods, used)
            if len(works) > MOST_TASKS:
                self.fail(place, f"more than {MOST_TASKS} combinations; split the campaign")
        for place, entry in methods:
            if place not in used:
                self.fail(
                    f"{place}.name", f"no question of this campaign uses the method {entry['name']!r}; leave it out"
                )
        models = {n.sha256: ModelFile(n.path, n.model) for listed in self.networks.values() for n in listed}
        return Campaign(str(self.path), tuple(works), models, run)

    def _allowed(self, run: dict[str, Any]) -> None:
        """A file from somebody else may neither open a connection nor write outside its own folder."""
        executor = run.get("executor", "local")
        if not (isinstance(executor, str) and _HERE.fullmatch(executor)):
            self.fail(
                "run.executor",
                f"{str(executor)[:80]!r}: a campaign file may name local or local:N; "
                "anything else only on the command line, with --executor",
            )
        store_of(self.path, run.get("store", STORE))

    def fail(self, place: str, message: str) -> None:
        raise CampaignError(f"{self.path}: {place}: {message}")

    def _entries(self, section: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """The entries of a section with their places, their keys checked."""
        found = self.content.get(section)
        if not isinstance(found, list) or not found or not all(isinstance(entry, dict) for entry in found):
            raise CampaignError(f"{self.path}: {section}: at least one [[{section}]] is needed")
        for number, entry in enumerate(found):
            place = f"{section}[{number}]"
            self.place = place
            self._known(section, place, entry)
            for key in _NEEDED[section]:
                if key not in entry:
                    self.fail(place, f"{key!r} is missing")
            yield place, entry

    def _known(self, section: str, place: str, entry: dict[str, Any]) -> None:
        for key in entry:
            if section in _KEYS and key not in _KEYS[section]:
                self.fail(f"{place}.{key}", f"unknown key; known: {', '.join(_KEYS[section])}")

    def _file(self, place: str, name: Any) -> Path:
        if not isinstance(name, str):
            self.fail(place, f"a file name in quotes is needed, not {name!r}")
        if name.startswith(BUNDLED):
            return bundled(name.removeprefix(BUNDLED))
        found = self.path.parent / name
        if not found.is_file():
            self.fail(place, f"there is no file {str(found)!r}; paths are relative to the campaign file")
        return found.absolute()  # a store is read from other folders, too

    def _network(self, place: str, entry: dict[str, Any]) -> None:
        """Reads the model files of one entry."""
        from ..formats.onnx import load_onnx

        if ("model" in entry) == ("models" in entry):
            self.fail(place, "name one 'model', or 'models' for an ensemble")
        files = entry.get("models", [entry.get("model")])
        if not isinstance(files, list) or not files:
            self.fail(f"{place}.models", "a list of file names is needed")
        paths = [self._file(f"{place}.model{'s' * ('models' in entry)}", file) for file in files]
        name = self._name(f"{place}.name", entry.get("name", paths[0].stem), self.networks)
        fix, perturb, output = entry.get("fix", {}), entry.get("perturb"), entry.get("output")
        if not isinstance(fix, dict) or not isinstance(perturb, str | None) or not isinstance(output, str | None):
            self.fail(place, "'fix' is a table of files by input, 'perturb' and 'output' are names of tensors")
        fixed = {key: self._array(f"{place}.fix.{key}", file) for key, file in fix.items()}
        self.networks[name] = [load_onnx(path, fixed, perturb, output) for path in paths]

    def _dataset(self, place: str, entry: dict[str, Any]) -> None:
        from ..formats.datasets import load_dataset

        path = self._file(f"{place}.file", entry["file"])
        labels = self._file(f"{place}.labels", entry["labels"]) if "labels" in entry else None
        name = self._name(f"{place}.name", entry.get("name", path.stem), self.data)
        dataset = load_dataset(path, labels)
        self.data[name] = dataset, self._indices(f"{place}.indices", entry.get("indices"), len(dataset))

    def _name(self, place: str, name: Any, taken: dict[str, Any]) -> str:
        if not isinstance(name, str) or not name:
            self.fail(place, "a name in quotes is needed")
        if name in taken:
            self.fail(place, f"{name!r} is taken; give every entry a name of its own")
        return str(name)

    def _indices(self, place: str, given: Any, count: int) -> list[int]:
        """Which instances an entry asks about; ranges are written as on the command line."""
        if given is None:
            return list(range(count))
        parts = given if isinstance(given, list) else str(given).split(",")
        found: list[int] = []
        for part in map(str, parts):
            first, colon, last = part.strip().partition(":")
            try:
                start = int(first or 0)
                stop = (int(last) if last else count) if colon else start + 1
            except ValueError:
                self.fail(place, f"{part!r} is neither an index nor a range such as 0:500")
            if not 0 <= start < stop <= count:
                self.fail(place, f"{part!r} is not within the {count} inputs")
            found += range(start, stop)
        return list(dict.fromkeys(found))

    def _array(self, place: str, file: Any) -> Any:
        from ..formats.datasets import load_array

        return load_array(self._file(place, file))

    def _perturbations(self, place: str, entry: dict[str, Any]) -> Iterator[Any]:
        """One perturbation for every radius and norm; numbers, or npy files in quotes."""
        from ..formats.datasets import load_alternatives
        from ..regions import Perturbation

        if "alternatives" in entry:
            if entry.keys() - {"alternatives", "at_most"}:
                self.fail(place, "'alternatives' is a region of its own, with 'at_most' only")
            for most in _listed(entry.get("at_most")):
                with self._at(place):
                    yield load_alternatives(self._file(f"{place}.alternatives", entry["alternatives"]), most)
            return
        clip, normalize = entry.get("clip"), entry.get("normalize")
        if clip is not None and not (isinstance(clip, list) and len(clip) == 2 and all(map(_is_number, clip))):
            self.fail(f"{place}.clip", f"two numbers are needed, for example [0, 1], not {clip!r}")
        if normalize is not None and not (isinstance(normalize, list) and len(normalize) == 2):
            self.fail(f"{place}.normalize", "mean and deviation are needed, for example [[0.5], [0.25]]")
        more: dict[str, Any] = {"normalize": normalize and tuple(normalize)}
        for name in ("only", "lower", "upper"):
            value = entry.get(name)
            more[name] = self._array(f"{place}.{name}", value) if isinstance(value, str) else value
        if "eps" not in entry and (more["lower"] is None or more["upper"] is None):
            self.fail(place, "'eps' is missing")
        for eps, norm in product(_listed(entry.get("eps")), _listed(entry.get("norm", "inf"))):
            if not (eps is None or _is_number(eps) or (isinstance(eps, str) and eps.endswith(".npy"))):
                self.fail(f"{place}.eps", f"a number, a list of numbers, or an npy file is needed, not {eps!r}")
            if str(norm) not in ("inf", "1", "2"):
                self.fail(f"{place}.norm", f"choose 1, 2 or inf, not {norm!r}")
            radius = self._array(f"{place}.eps", eps) if isinstance(eps, str) else None if eps is None else float(eps)
            with self._at(place):
                yield Perturbation(radius, float(norm), clip and (float(clip[0]), float(clip[1])), **more)

    def _question(
        self,
        place: str,
        entry: dict[str, Any],
        perturbations: list[Any],
        methods: list[tuple[str, dict[str, Any]]],
        used: set[str],
    ) -> Iterator[Work]:
        """The work that one question means: every combination of its lists."""
        with self._at(f"{place}.ask"):
            question = find_question(entry["ask"])
        networks = self._chosen(f"{place}.networks", entry.get("networks"), self.networks)
        data = self._chosen(f"{place}.data", entry.get("data"), self.data)
        single = question.name == "robustness"
        if single:
            ensembles = [name for name in networks if len(self.networks[name]) > 1]
            if ensembles and (entry.get("networks") or len(ensembles) == len(networks)):
                self.fail(
                    f"{place}.networks", f"robustness is asked of single networks, {ensembles[0]!r} is an ensemble"
                )
            networks = [name for name in networks if name not in ensembles]
        names = {name: name for _, given in methods for name in _listed(given["name"])}
        wanted = self._chosen(f"{place}.methods", entry.get("methods"), names)
        rest = {key: value for key, value in entry.items() if key not in ("ask", "networks", "data", "methods")}
        chosen = list(self._methods(question, methods, wanted, used))
        if not chosen:
            named = "of those named " if "methods" in entry else ""
            self.fail(place, f"no method {named}of this campaign answers {question.name}; add one to [[methods]]")
        for given in _expanded(rest, ("targets",)):
            with self._at(place):
                keywords = question.keywords(given)
            for network, name, perturbation, (method_name, method, bound) in product(
                networks, data, perturbations, chosen
            ):
                dataset, indices = self._prepared(network, name)
                models = tuple(Model(n.path, n.sha256) for n in self.networks[network])
                task = Task(
                    question.name,
                    network,
                    models,
                    name,
                    dataset.path,
                    perturbation,
                    method_name,
                    method,
                    bound,
                    keywords,
                    question.defaults(),
                )
                yield Work(task, dataset, indices)

    def _method_name(self, place: str, name: Any) -> None:
        refusals = []
        for question in QUESTIONS.values():
            try:
                question.find(name)
                return
            except InvalidInput as problem:
                refusals.append(f"{question.name}: {problem}")
        self.fail(place, "; ".join(refusals))

    def _methods(
        self, question: Question, methods: list[tuple[str, dict[str, Any]]], wanted: list[str], used: set[str]
    ) -> Iterator[tuple[str, Any, str]]:
        """The methods that answer a question, one for each combination of their settings."""
        if not methods:
            yield question.method(None, None, {})
        for place, entry in methods:
            for given in _expanded(entry, ()):
                name, bound = given.pop("name"), given.pop("bound", None)
                if not isinstance(name, str) or not isinstance(bound, str | None):
                    self.fail(place, "'name' and 'bound' are words in quotes")
                if name not in wanted:
                    continue
                try:
                    question.find(name)
                except InvalidInput:
                    continue  # a method of another question
                used.add(place)
                with self._at(place):
                    yield question.method(name, bound, given)

    def _chosen(self, place: str, names: Any, known: dict[str, Any]) -> list[str]:
        for name in _listed(names) if names is not None else ():
            if name not in known:
                self.fail(place, f"there is no {name!r}; known: {', '.join(known)}")
        return list(known) if names is None else _listed(names)

    def _prepared(self, network: str, data: str) -> tuple[Dataset, list[int]]:
        """The data as a network takes them; CampaignError where they do not fit."""
        from ..formats.inputs import fit_inputs

        dataset, indices = self.data[data]
        first = self.networks[network][0]
        if (network, data) not in self.prepared:
            prepared = dataset.through(first)
            try:
                fit_inputs(first, prepared.take(indices[:1]))
            except InvalidInput as problem:
                message = f"inputs of {data!r} do not fit {network!r} ({problem}); name 'networks' and 'data'"
                self.fail("questions", f"{message} in each question")
            self.prepared[network, data] = prepared
        return self.prepared[network, data], indices

    def _at(self, place: str) -> _Place:
        return _Place(self, place)


@dataclass(frozen=True)
class _Place:
    """What goes wrong inside is said with the place in the file."""

    reader: _Reader
    place: str

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, problem: BaseException | None, at: Any) -> None:
        if isinstance(problem, SofthullError) and not isinstance(problem, CampaignError):
            raise CampaignError(f"{self.reader.path}: {self.place}: {problem}") from None


def _read(path: Path) -> dict[str, Any]:
    """The content of a campaign file, or one line that says why it cannot be read."""
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise CampaignError(f"{path}: larger than {LARGEST_FILE >> 20} MB; a campaign is a short text")
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise CampaignError(f"{path}: cannot be read ({problem.strerror or problem})") from None
    except UnicodeDecodeError:
        raise CampaignError(f"{path}: not a text file") from None
    except (tomllib.TOMLDecodeError, RecursionError) as problem:
        raise CampaignError(f"{path}: not a TOML file: {problem or 'nested too deep'}") from None


def _expanded(entry: dict[str, Any], kept: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """One dictionary for every combination of the listed values."""
    choices = [[value] if key in kept else _listed(value) for key, value in entry.items()]
    for combination in product(*choices):
        yield dict(zip(entry, combination))


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
