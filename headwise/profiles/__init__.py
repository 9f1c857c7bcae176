"""Profiles (statistics of every head of a model over a data set): `profile(model, texts)`, and `headwise profile`.

from headwise.capture.pretrained import load_pretrained
from headwise.profiles import corpus, profile

found = profile(load_pretrained("bert-base-uncased"), corpus.of_file(Path("corpus.txt")))
found[2, 5].kind, found[2, 5].pairs(), found[2, 5].examples
found.save("profile.hw")
"""

from headwise.profiles.bins import MEASURES
from headwise.profiles.classes import CLASSES
from headwise.profiles.collect import profile
from headwise.profiles.corpus import Corpus
from headwise.profiles.examples import Example
from headwise.profiles.kinds import KINDS
from headwise.profiles.profile import Head, Pair, Profile
from headwise.profiles.storage import load

__all__ = ["CLASSES", "KINDS", "MEASURES", "Corpus", "Example", "Head", "Pair", "Profile", "load", "profile"]
