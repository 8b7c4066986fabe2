"""Our tasks, held to the suite that others' are held to."""

from veilgraph_averaging.conformance import TaskConformance

from tests.paradigms.averaging.own_graphs import graphs_for
from veilgraph.graph.party import PartyGraph


class TestClasses(TaskConformance):
    name = "classes"


class TestValues(TaskConformance):
    name = "values"

    def graphs(self) -> list[PartyGraph]:
        return graphs_for("values")


class TestValuesWithinBounds(TestValues):
    said = {"low": -5.0, "high": 15.0}  # noqa: RUF012


class TestLinks(TaskConformance):
    name, said = "links", {"bins": 50}

    def graphs(self) -> list[PartyGraph]:
        return graphs_for("links")


class TestLinksByAnMlp(TestLinks):
    said = {"decoder": "mlp", "negatives": 3}  # noqa: RUF012


class TestGraphs(TaskConformance):
    name = "graphs"

    def graphs(self) -> list[PartyGraph]:
        return graphs_for("graphs")
