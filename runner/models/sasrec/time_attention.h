// The part of TiSASRec's attention that depends on the time between two events (Li, Wang and McAuley, "Time Interval
// Aware Self-Attention for Sequential Recommendation", WSDM 2020).
//
// Each pair of positions has a relation r_ij = min(|t_i - t_j|, span), which selects a row of the time tables. The
// paper's form gathers that row for each pair, into a tensor [B, T, T, D]. As there are only span + 1 different rows,
// products with the whole table give the same sums: q_i · K[r_ij] is column r_ij of q_i Kᵀ; Σ_j a_ij V[r_ij] is w_i V,
// where w_i,r sums a_ij over the j with r_ij = r. These products store tensors of [B, H, T, span + 1] instead.
// Threads: one.
// Shapes: B samples, T positions, H heads, E = D / H, R = span + 1 relations.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace lockstep {

// times_BT: int64. Returns r_BTT: int64 in [0, span].
at::Tensor time_relations(const at::Tensor& times_BT, int64_t span);

// Bucketed form: all pairs share one table. Returns scores_BHTT, q_i · table[r_ij].
at::Tensor bucketed_time_scores(const at::Tensor& query_BHTE, const at::Tensor& table_RD,
                                const at::Tensor& relations_BTT);
// Returns values_BHTE, Σ_j a_ij table[r_ij], where a is attention_BHTT.
at::Tensor bucketed_time_values(const at::Tensor& attention_BHTT, const at::Tensor& table_RD,
                                const at::Tensor& relations_BTT);

// Pairwise form, as in the paper: rows_BTTD holds the table's row of each pair, so that dropout can act on each pair
// separately.
at::Tensor pairwise_time_scores(const at::Tensor& query_BHTE, const at::Tensor& rows_BTTD);
at::Tensor pairwise_time_values(const at::Tensor& attention_BHTT, const at::Tensor& rows_BTTD);

}  // namespace lockstep
