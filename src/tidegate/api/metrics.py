"""`/metrics`: the project and the service in numbers, as Prometheus reads them."""

from __future__ import annotations

from collections.abc import Iterator

from fastapi import APIRouter, Response
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric

from tidegate.api.documentation import route
from tidegate.api.service import Served
from tidegate.insight.event_metrics import measure_events
from tidegate.insight.metrics import Metric as Figure
from tidegate.insight.metrics import measure, measure_syncs
from tidegate.insight.slot_metrics import measure_slots
from tidegate.insight.sync_lines import list_syncs
from tidegate.insight.tables import cache
from tidegate.model.access import Scope

router = APIRouter(tags=["service"])
TEXT = "text/plain; version=1.0.0; charset=utf-8"
_EXAMPLE = """# HELP tidegate_queue_depth Jobs that could start now.
# TYPE tidegate_queue_depth gauge
tidegate_queue_depth{kind="maintenance"} 2.0
"""


class _Measured:
    """Figures that were just read, as a registry collects them."""

    def __init__(self, figures: list[Figure]) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        for figure in self._figures:
            family = GaugeMetricFamily(figure.name, figure.help, labels=figure.labels)
            for labels, value in figure.values.items():
                family.add_metric(labels, float(value))
            yield family


@router.get(
    "/metrics",
    summary="Figures for Prometheus",
    response_class=Response,
    **route(
        Scope.READ,
        responses={
            200: {
                "description": "In the text format of Prometheus.",
                "content": {"text/plain": {"schema": {"type": "string"}, "example": _EXAMPLE}},
            }
        },
    ),
)
def get_metrics(service: Served) -> Response:
    context = service.context
    with service.control() as control:
        figures = list(measure(context, control))
        figures += measure_slots(context, control)
        lines = list_syncs(context, control, service.project.declared)
        figures += measure_syncs(lines, cache(context).clock(control).timestamp())
    figures += measure_events(context)
    measured = CollectorRegistry(auto_describe=False)
    measured.register(_Measured(figures))
    body = generate_latest(measured) + generate_latest(service.registry)
    return Response(body, media_type=TEXT)
