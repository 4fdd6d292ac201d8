"""Helpers of tests, for the suites of all distributions.

accelerate_run    run a sampler under Accelerate, in this process or in two others, and report the
                  indices of each step
arm               a tiny policy for the arm of `understudy_client.testing.arm`
audited           a run with everything that changes its samples, and a record of the samples that
                  its steps really consumed
checkpoint_ranks  functions of each rank in the tests of checkpoints on several ranks
                  (`packages/understudy/tests/train/checkpoint/test_ranks.py`)
docs              code in pages: blocks of a language, commands as bash expands them, settings of a
                  training, Python that runs
golden_memory     golden files of the memory encoder and of training with noiseless leading actions,
                  from the formulas alone
graphs            recorders of graphs without a GPU: a tape with the rules of CUDA graphs, and plain
                  calls
killed            training runs that SIGKILL ends again and again until they are done, and the
                  conditions that must hold then
launched_rank     reads a stream or a loader in each rank of a launcher:
                  `python launched_rank.py ROOT OUT [group]`
mixtures          a small mixture of sources that differ in every permitted way
naive_pi05        pi0.5 and pi0 a second time, from the formulas and by loops: slow, in float64, one
                  sample at a time, released names
pages             pages in tests: blocks as HTML, and the charts of a page
pi05              a small pi0.5 network in which every parameter matters, and its inputs
pi05_policy       a small pi0.5, or a policy made of it, with a tokenizer, and batches for it
policies          a tiny policy, a batch and draws for the tests of the policies
rank              a scripted rank without torch: `python rank.py FOLDER WORD...`, one word per rank
                  (the last for the rest)
ranks             several processes of one run, for tests: call a function in N ranks at once and
                  return the results of all
released          keys and shapes of released pi0.5 and pi0 files, written down from their
                  description and not from the code
resumed           stopped and resumed runs, and the positions that each of their steps consumed
run_fixtures      fixtures of tests of runs: a dataset, a mesh of one process, a tokenizer
runs              training runs small enough for tests: a second or less, every part of the real one
sentences         a small sentencepiece model like PaliGemma's, trained on the fly: pad 0, eos 1,
                  bos 2, digits one by one
setting_reads     settings that code reads, by the syntax of the package: attribute reads whose
                  owner is a settings class
slurm             a SLURM cluster of two virtual hosts on this machine: munged, slurmctld and two
                  slurmd in a temporary folder
tracked           a process that logs figures like a run, then is killed or ends:
                  `python tracked.py RUN TRACKERS FROM TO kill|end`
validated         validations with all observers
"""
