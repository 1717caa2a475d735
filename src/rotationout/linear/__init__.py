"""Linear models under noise, as scikit-learn estimators (section 2.2; the extra ``linear``).

`RotationOutRegressor` and `DropoutRegressor` integrate the noise out and solve in closed form; the versions ending in
CV also choose the strength of the noise. `NoisyLogisticRegression` is trained under noise. `condition_numbers` and
`margin_angle` compute what the paper says about regression and classification.
"""

try:
    import sklearn  # noqa: F401
except ImportError as error:
    raise ImportError(
        "rotationout.linear needs scikit-learn, which cannot be imported: pip install 'rotationout[linear]'"
    ) from error

from ._classification import NoisyLogisticRegression
from ._condition import ConditionNumbers, condition_numbers, rotation_condition_bound
from ._margin import boundary_angle, flip_probability, margin_angle
from ._regression import DropoutRegressor, RotationOutRegressor
from ._selection import DropoutRegressorCV, RotationOutRegressorCV

__all__ = [
    "ConditionNumbers",
    "DropoutRegressor",
    "DropoutRegressorCV",
    "NoisyLogisticRegression",
    "RotationOutRegressor",
    "RotationOutRegressorCV",
    "boundary_angle",
    "condition_numbers",
    "flip_probability",
    "margin_angle",
    "rotation_condition_bound",
]
