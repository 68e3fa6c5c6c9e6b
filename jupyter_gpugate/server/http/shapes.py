"""The answers as models, for the OpenAPI document and the tests; they validate nothing.

Each follows from the dataclass of its answer.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, create_model

from jupyter_gpugate.core.codec import json_name
from jupyter_gpugate.core.explaining.rows import Forecast
from jupyter_gpugate.gate.port import Locked, Samples, Unlocked
from jupyter_gpugate.runs.orders import Cancelled
from jupyter_gpugate.runs.reading import Output
from jupyter_gpugate.server.feed import Transitions
from jupyter_gpugate.server.http import answers, group_answers, run_answers
from jupyter_gpugate.server.http.wire import Declared


class Answer(BaseModel):
    """Any answer."""

    # Clients must ignore unknown fields.
    model_config = ConfigDict(extra="allow")


def model_of(kind: type[Any], *forms: type[Any], name: str = "") -> type[BaseModel]:
    """Make the model of an answer; fields that only other forms of it have are optional."""
    found: Declared = {}
    for form in (kind, *forms):
        hints = get_type_hints(form)
        for field in fields(form):
            if field.name in found:
                continue
            optional = form is not kind
            hint = hints[field.name] | None if optional else hints[field.name]
            found[field.name] = (
                hint,
                Field(
                    None if optional else ...,
                    alias=json_name(field),
                    description=field.metadata.get("description"),
                ),
            )
    model = create_model(name or kind.__name__, __base__=Answer, **found)
    model.__doc__ = kind.__doc__
    return model


ErrorAnswer = model_of(answers.ErrorAnswer)
QueueAnswer = model_of(answers.QueueAnswer, answers.QueueAnswerWithInputs)
EstimateAnswer = model_of(Forecast, name="EstimateAnswer")
MachineAnswer = model_of(answers.MachineAnswer)
ForgottenAnswer = model_of(answers.ForgottenAnswer)
LockAnswer = model_of(Locked, name="LockAnswer")
UnlockAnswer = model_of(Unlocked, name="UnlockAnswer")
DrainAnswer = model_of(answers.DrainAnswer, answers.DrainAndStopAnswer)
CalibrationsAnswer = model_of(answers.CalibrationsAnswer)
TransitionsAnswer = model_of(Transitions, name="TransitionsAnswer")
SamplesAnswer = model_of(Samples, name="SamplesAnswer")
GroupCardAnswer = model_of(answers.GroupCardAnswer)
GroupAnswer = model_of(group_answers.GroupAnswer)
GroupCancelAnswer = model_of(group_answers.GroupCancelAnswer)
CardAnswer = model_of(answers.CardAnswer)
PanelAnswer = model_of(answers.PanelAnswer)
OpenApiAnswer = model_of(answers.OpenApiAnswer)

SubmitAnswer = model_of(run_answers.SubmitAnswer)
RunsAnswer = model_of(run_answers.RunsAnswer)
RunAnswer = model_of(
    run_answers.RunAnswer, run_answers.QueuedRunAnswer, run_answers.ActiveRunAnswer
)
OutputAnswer = model_of(Output, name="OutputAnswer")
CancelAnswer = model_of(Cancelled, name="CancelAnswer")
DetachAnswer = model_of(run_answers.DetachAnswer)
DeleteAnswer = model_of(run_answers.DeleteAnswer)
AttemptsAnswer = model_of(run_answers.AttemptsAnswer)
EpisodesAnswer = model_of(run_answers.EpisodesAnswer)
StoryAnswer = model_of(run_answers.StoryAnswer)
ExportAnswer = model_of(run_answers.ExportAnswer)
