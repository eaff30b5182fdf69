"""softhull: certified statements about softmax.

Every public name is here; beside it only ``softhull.cvxpy`` is public. The bounds need NumPy alone; what needs torch,
ONNX or a solver is imported when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .bounds.questions import SoftmaxPlanes as SoftmaxPlanes
from .bounds.questions import softmax_bounds as softmax_bounds
from .bounds.questions import softmax_planes as softmax_planes
from .bounds.table import BOUNDS as BOUNDS
from .bounds.table import Bound as Bound
from .bounds.table import Curvature as Curvature
from .bounds.table import Exactness as Exactness
from .bounds.vertex import softmax_extrema as softmax_extrema
from .data import bundled as bundled
from .errors import InvalidInput as InvalidInput
from .errors import MissingExtra as MissingExtra
from .errors import SofthullError as SofthullError

if TYPE_CHECKING:
    from .attack.score import ScoreAttack as ScoreAttack
    from .certificates.write import class_certificate as class_certificate
    from .certificates.write import score_certificate as score_certificate
    from .checker.certificate import write_certificate as write_certificate
    from .checker.check import check_certificate as check_certificate
    from .checker.dataset import check_dataset as check_dataset
    from .formats.datasets import load_dataset as load_dataset
    from .formats.onnx import load_onnx as load_onnx
    from .formats.torch_module import from_torch as from_torch
    from .formats.vnnlib import load_vnnlib as load_vnnlib
    from .propagate.methods import Auto as Auto
    from .propagate.methods import Branch as Branch
    from .propagate.methods import Linear as Linear
    from .propagate.methods import Paper as Paper
    from .propagate.methods import SecondOrder as SecondOrder
    from .propagate.second_order.quadratic import QuadraticBound as QuadraticBound
    from .propagate.second_order.quadratic import quadratic_lower_bound as quadratic_lower_bound
    from .regions import Alternatives as Alternatives
    from .regions import Perturbation as Perturbation
    from .runs.python import RunStore as RunStore
    from .solve.conic import Conic as Conic
    from .solve.cutting import CuttingPlanes as CuttingPlanes
    from .solve.dual import Dual as Dual
    from .verify.conformal import Conformal as Conformal
    from .verify.conformal import ConformalScore as ConformalScore
    from .verify.conformal import PredictionSets as PredictionSets
    from .verify.conformal import study_conformal as study_conformal
    from .verify.dataset import DatasetReport as DatasetReport
    from .verify.dataset import certify_dataset as certify_dataset
    from .verify.radii import CertifiedRadii as CertifiedRadii
    from .verify.result import Record as Record
    from .verify.result import Result as Result
    from .verify.result import Verdict as Verdict
    from .verify.robustness import certified_radius as certified_radius
    from .verify.robustness import verify_robustness as verify_robustness
    from .verify.robustness import verify_specification as verify_specification
    from .verify.scores import AffinePiece as AffinePiece
    from .verify.scores import Brier as Brier
    from .verify.scores import ConcavePiece as ConcavePiece
    from .verify.scores import Confidence as Confidence
    from .verify.scores import Entropy as Entropy
    from .verify.scores import ErrorProbability as ErrorProbability
    from .verify.scores import Margin as Margin
    from .verify.scores import NegativeLogLikelihood as NegativeLogLikelihood
    from .verify.scores import Score as Score
    from .verify.uncertainty import UncertaintyResult as UncertaintyResult
    from .verify.uncertainty import verify_uncertainty as verify_uncertainty

__version__ = "0.1.0"

# name -> (module, extra that brings what the module needs)
_ON_FIRST_USE = {
    "load_dataset": ("formats.datasets", "onnx"),
    "load_onnx": ("formats.onnx", "onnx"),
    "from_torch": ("formats.torch_module", "from-torch"),
    "load_vnnlib": ("formats.vnnlib", "vnnlib"),
    "Auto": ("propagate.methods", "onnx"),
    "Branch": ("propagate.methods", "onnx"),
    "Linear": ("propagate.methods", "onnx"),
    "Paper": ("propagate.methods", "onnx"),
    "SecondOrder": ("propagate.methods", "onnx"),
    "Alternatives": ("regions", "onnx"),
    "Perturbation": ("regions", "onnx"),
    "QuadraticBound": ("propagate.second_order.quadratic", "onnx"),
    "quadratic_lower_bound": ("propagate.second_order.quadratic", "onnx"),
    "CertifiedRadii": ("verify.radii", "onnx"),
    "Record": ("verify.result", "onnx"),
    "Result": ("verify.result", "onnx"),
    "RunStore": ("runs.python", "onnx"),
    "Verdict": ("verify.result", "onnx"),
    "certified_radius": ("verify.robustness", "onnx"),
    "verify_robustness": ("verify.robustness", "onnx"),
    "verify_specification": ("verify.robustness", "onnx"),
    "Dual": ("solve.dual", "onnx"),
    "CuttingPlanes": ("solve.cutting", "onnx"),
    "Conic": ("solve.conic", "onnx"),
    "ScoreAttack": ("attack.score", "onnx"),
    "Score": ("verify.scores", "onnx"),
    "AffinePiece": ("verify.scores", "onnx"),
    "ConcavePiece": ("verify.scores", "onnx"),
    "NegativeLogLikelihood": ("verify.scores", "onnx"),
    "Brier": ("verify.scores", "onnx"),
    "Confidence": ("verify.scores", "onnx"),
    "ErrorProbability": ("verify.scores", "onnx"),
    "Margin": ("verify.scores", "onnx"),
    "Entropy": ("verify.scores", "onnx"),
    "UncertaintyResult": ("verify.uncertainty", "onnx"),
    "verify_uncertainty": ("verify.uncertainty", "onnx"),
    "DatasetReport": ("verify.dataset", "onnx"),
    "certify_dataset": ("verify.dataset", "onnx"),
    "Conformal": ("verify.conformal", "onnx"),
    "ConformalScore": ("verify.conformal", "onnx"),
    "PredictionSets": ("verify.conformal", "onnx"),
    "study_conformal": ("verify.conformal", "onnx"),
    "check_certificate": ("checker.check", "check"),
    "check_dataset": ("checker.dataset", "check"),
    "class_certificate": ("certificates.write", "check"),
    "score_certificate": ("certificates.write", "check"),
    "write_certificate": ("checker.certificate", "check"),
}


def __getattr__(name: str) -> Any:
    if name not in _ON_FIRST_USE:
        raise AttributeError(f"module 'softhull' has no attribute {name!r}")
    module, extra = _ON_FIRST_USE[name]
    try:
        return getattr(import_module(f".{module}", __name__), name)
    except ModuleNotFoundError as missing:
        package = missing.name
        raise MissingExtra(f"{name} needs {package}, which is not installed: pip install 'softhull[{extra}]'") from None


def __dir__() -> list[str]:
    return sorted({*globals(), *_ON_FIRST_USE})
