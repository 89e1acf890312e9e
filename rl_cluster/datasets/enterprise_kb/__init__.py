"""`enterprise_kb`: the knowledge base of a fictitious company, generated from a seed.

Pages describe products and name an identifier; runbooks, price lists, reviews and the like are filed under identifiers
and never say what a product does. A question describes a product and asks for one kind of document: its page is found
by meaning, the documents under its identifier by words, and the newest version counts most.
"""

from rl_cluster.datasets.enterprise_kb.generator import CORPUS_NAME, KnowledgeBase, generate

__all__ = ["CORPUS_NAME", "KnowledgeBase", "generate"]
