// Ratings made in memory, free to ship, with something to learn from the texts.
//
// Role: the data set `generated`. A user's occupation says which genre he likes, so that the texts alone know whom a
// film suits that nobody has seen yet. Every seventh film is one: it is kept back for the test.
// Threads: pure; the same on every machine.
#pragma once

#include "runner/models/gpt2rec/movielens.h"

namespace lockstep {

RatingData generated_movies();

}  // namespace lockstep
