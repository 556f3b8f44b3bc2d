// The part of TiSASRec's attention that depends on how long ago something was (Li, Wang and McAuley, "Time Interval
// Aware Self-Attention for Sequential Recommendation", WSDM 2020).
//
// Each pair of positions has a relation r_ij = min(|t_i - t_j|, span): a row of the time tables. The paper's form
// gathers that row for each pair, a tensor [B, T, T, D]. There are only span + 1 different rows, so the same sums are
// had from products with the table: q_i · K[r_ij] is column r_ij of q_i Kᵀ, and Σ_j a_ij V[r_ij] is the attention that
// falls on each row, times V. What is stored is [B, H, T, span + 1] instead. Threads: one. Shapes: B samples, T
// positions, H heads, E = D / H, R = span + 1 relations.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace lockstep {

// times_BT: int64. Returns r_BTT: int64 in [0, span].
at::Tensor time_relations(const at::Tensor& times_BT, int64_t span);

// Bucketed: one table for all pairs. query_BHTE, table_RD, relations_BTT. Returns q_i · table[r_ij]: scores_BHTT.
at::Tensor bucketed_time_scores(const at::Tensor& query_BHTE, const at::Tensor& table_RD,
                                const at::Tensor& relations_BTT);
// attention_BHTT. Returns Σ_j a_ij table[r_ij]: BHTE.
at::Tensor bucketed_time_values(const at::Tensor& attention_BHTT, const at::Tensor& table_RD,
                                const at::Tensor& relations_BTT);

// Pairwise: the rows of each pair, on which a dropout of its own may have acted. rows_BTTD.
at::Tensor pairwise_time_scores(const at::Tensor& query_BHTE, const at::Tensor& rows_BTTD);
at::Tensor pairwise_time_values(const at::Tensor& attention_BHTT, const at::Tensor& rows_BTTD);

}  // namespace lockstep
