from hypothesis import given
from graphdist.ir.compare import first_difference, content_hash
from graphdist.ir.graph import Graph
from graphdist.ir.parser import parse
from graphdist.ir.printer import opaques, print_graph
from graphdist.ir.verifier import verify
from tests.ir.generators import graphs

@given(graphs())
def test_text_gives_the_graph_back(graph: Graph) -> None:
    verify(graph); verify(graph, full=True)
    text = print_graph(graph)
    again = parse(text, opaques(graph))
    assert first_difference(graph, again) is None
    assert content_hash(graph) == content_hash(again)
    assert print_graph(again) == text
