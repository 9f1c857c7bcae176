"""Attention modules of public repositories: which of their bugs does the doctor name, and whom does it accuse wrongly?

    python benchmarks/real CHECKOUTS                # the half that may be worked with
    python benchmarks/real CHECKOUTS --half sealed  # the other half: scored once, at the end of a piece of work
    python benchmarks/real CHECKOUTS --seeds 0 1 2  # with other seeds, from which the doctor draws weights and inputs

CHECKOUTS is a folder of clones, each `OWNER+NAME`, bare or not. `cases.json` says which class of which commit is
examined, with which arguments, and what is true of it. The code of the modules does not lie here.

# The rule of choice

1. A repository on GitHub that is little known: no package that many install, none of a company or of the authors of a
   well-known model, none that `benchmarks/wild` or docs/doctor.md names. All fields: vision, speech, language,
   time series, graphs, recommendation, medicine and biology, control, tutorials and courses; six modules in Keras.
2. At most two classes of a repository. A class computes attention itself: it does more than call a ready layer.
3. It runs with torch (or Keras), NumPy and einops, and with files of its own repository, on small inputs, in one call
   that somebody has seen to work before the doctor is asked.
4. Files are taken in the order in which a search lists them, whatever they contain; a class is left out only by 1 to 3.
   When a kind (with a bug, clean) is full, further ones of that kind are left out, unseen by the doctor as all others.
5. What is true is found by reading and by experiment, before the doctor is asked. *bug*: what is computed contradicts
   what the code, its document or its caller says, in a call that the repository makes or that the signature offers; an
   experiment shows it. *clean*: an experiment on each of masks, order, examples, scale, gradients and modes shows
   nothing. *doubtful*: readers could differ; it is run, and not counted.
6. The rule, the list and the truths are committed before the doctor runs on any of them. None is dropped later, and a
   truth that turns out to be wrong is corrected in a change of its own that says why.

The halves are drawn by `random.Random(20261130)`, among those with a bug and among the clean ones alike.
"""
