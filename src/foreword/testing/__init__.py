"""What Foreword is tested with, shipped so that its users can test with it too.

``material`` fetches real tokenizers, ``crafted`` makes one of every pipeline kind, ``texts`` writes nasty texts,
``reference`` gives the ids they must have, ``histories`` replays requests against a cache, ``fuzz_tokens`` does all of
it until told to stop. ``workers`` has a worker without a model, ``chat`` a tokenizer and chat template of bytes,
``server`` a gateway of these behind a real socket. Nothing else in Foreword imports this package.
"""
