// The data set `generated`: ratings made in memory, free of copyright, with something to learn from the texts.
//
// Users of an occupation like one genre. So the texts alone predict who likes a film that nobody has rated yet. Every
// seventh film is such a film: its ratings are kept back for the test.
// Threads: pure; the same on every machine.
#pragma once

#include "runner/models/gpt2rec/data/movielens.h"

namespace lockstep {

RatingData generated_movies();

}  // namespace lockstep
