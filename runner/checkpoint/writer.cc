#include "runner/checkpoint/writer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "runner/base/clock.h"
#include "runner/base/forwarding_file_system.h"
#include "runner/base/mutex.h"
#include "runner/formats/checkpoint_dir.h"
#include "runner/tensor/side_stream.h"

namespace lockstep {
namespace {

constexpr std::chrono::milliseconds kPollInterval{200};

// Host copies of one file's tensors, made once and filled again at each checkpoint.
struct StagedFile {
  std::string file;
  NamedTensors host;
};

bool fits(const at::Tensor& host, const at::Tensor& source) {
  return host.defined() && host.sizes() == source.sizes() && host.scalar_type() == source.scalar_type();
}

// Allocates the buffers that do not exist yet.
void make_host_buffers(const NamedTensors& tensors, NamedTensors& host) {
  host.resize(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& source = tensors[i].tensor;
    host[i].name = tensors[i].name;
    if (fits(host[i].tensor, source)) continue;
    host[i].tensor =
        at::empty(source.sizes(),
                  at::TensorOptions().dtype(source.scalar_type()).device(at::kCPU).pinned_memory(!source.is_cpu()));
  }
}

void copy_to_host(const NamedTensors& tensors, const NamedTensors& host) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& source = tensors[i].tensor;
    host[i].tensor.copy_(source.detach(), /*non_blocking=*/!source.is_cpu());
  }
}

struct Job {
  CheckpointWrite write;
  TimePoint started;
  std::function<void()> wait_for_copy = [] {};
  std::optional<Error> error;  // found while staging
};

struct Output {
  std::string name;
  OutputContent content;
  CheckpointStamp stamp;
};

}  // namespace

class CheckpointWriter::Impl {
 public:
  Impl(FileSystem& fs, CheckpointWriterOptions options)
      : fs_(fs,
            [this]() -> Status {
              operations_ended_.fetch_add(1);
              return {};
            }),
        options_(std::move(options)) {
    if (!options_.device.is_cpu()) copies_.emplace(options_.device);
    thread_ = std::thread([this] { run(); });
  }

  ~Impl() {
    {
      const MutexLock lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  void make_buffers(const CheckpointContent& content) {
    wait_to_the_end(Writes::kCheckpoint);
    make_buffers_of(files_of(content));
  }

  void before_change() {
    if (copies_) copies_->join();
  }

  StageCost stage(const CheckpointContent& content) {
    StageCost cost;
    const TimePoint begin = now();
    wait_to_the_end(Writes::kCheckpoint);
    cost.stall_seconds = seconds_between(begin, now());
    const TimePoint copy_begin = now();
    Job job = make_job(content);
    cost.copy_seconds = seconds_between(copy_begin, now());
    job.started = now();
    {
      const MutexLock lock(mutex_);
      job_ = std::move(job);
    }
    changed_.notify_all();
    return cost;
  }

  void stage_output(std::string name, OutputContent content, const CheckpointStamp& stamp) {
    wait_to_the_end(Writes::kOutput);
    {
      const MutexLock lock(mutex_);
      output_ = Output{.name = std::move(name), .content = std::move(content), .stamp = stamp};
    }
    changed_.notify_all();
  }

  bool wait_durable(const std::function<bool()>& gives_up, Writes writes) {
    const auto are_over = [&]() REQUIRES(mutex_) {
      return (!job_ || writes == Writes::kOutput) && (!output_ || writes == Writes::kCheckpoint);
    };
    MutexLock lock(mutex_);
    while (!changed_.wait_for(lock, kPollInterval, are_over)) {
      lock.unlock();
      if (gives_up()) return false;
      const uint64_t ended = operations_ended_;
      if (std::exchange(operations_reported_, ended) != ended) options_.on_progress();
      lock.lock();
    }
    return true;
  }

  std::vector<WriteReport> poll_reports() {
    const MutexLock lock(mutex_);
    return std::exchange(reports_, {});
  }

  std::vector<OutputReport> poll_output_reports() {
    const MutexLock lock(mutex_);
    return std::exchange(output_reports_, {});
  }

 private:
  void wait_to_the_end(Writes writes) {
    wait_durable([] { return false; }, writes);
  }

  using Files = std::vector<std::pair<std::string, const NamedTensors*>>;

  static Files files_of(const CheckpointContent& content) {
    Files files = {{std::string(kModelFile), &content.model}};
    if (!content.optimizer.empty()) files.emplace_back(kOptimizerFile, &content.optimizer);
    for (const auto& [name, tensors] : content.ema) files.emplace_back(ema_file_name(name), &tensors);
    return files;
  }

  void make_buffers_of(const Files& files) {
    staged_.resize(files.size());
    for (size_t i = 0; i < files.size(); ++i) {
      staged_[i].file = files[i].first;
      make_host_buffers(*files[i].second, staged_[i].host);
    }
  }

  // The writing thread is idle, so this thread may fill the staged buffers.
  Job make_job(const CheckpointContent& content) {
    const at::NoGradGuard no_grad;
    const Files files = files_of(content);
    make_buffers_of(files);
    Job job;
    job.write = {options_.folder, content.state, {}, options_.retention, options_.run.job.resume};
    const auto copy = [&] {
      for (size_t i = 0; i < files.size(); ++i) copy_to_host(*files[i].second, staged_[i].host);
    };
    if (copies_) {
      copies_->queue_after_current(copy);
      job.wait_for_copy = copies_->wait();
    } else {
      copy();
    }
    for (size_t i = 0; i < files.size(); ++i) {
      Result<std::vector<TensorView>> views = views_of(staged_[i].host);
      if (views.ok()) {
        job.write.tensors.push_back({staged_[i].file, std::move(*views)});
      } else {
        job.error = views.error();
      }
    }
    return job;
  }

  WriteReport perform(Job& job) {
    WriteReport report;
    report.step = job.write.state.step;
    report.error = job.error;
    if (!report.error) {
      // torch's events and the allocator throw, and an uncaught exception on this thread would end the process.
      try {
        job.wait_for_copy();
        Result<WrittenCheckpoint> written = write_checkpoint(fs_, job.write);
        if (written.ok()) {
          report.written = std::move(*written);
        } else {
          report.error = written.error();
        }
      } catch (const std::exception& e) {
        report.error =
            Error{ErrorCode::kUnavailable, "checkpoint of step " + std::to_string(report.step) + ": " + e.what()};
      }
    }
    report.seconds = seconds_between(job.started, now());
    return report;
  }

  // A newer rank 0 writes files of the same names. This check keeps an old rank 0 from replacing them.
  Status write_output(const Output& output) {
    TRY(check_none_is_newer(fs_, options_.folder, options_.run, output.stamp));
    // The temporary file is made in the run's folder, because remove_leftovers searches there and not in the folders of
    // outputs, of which there may be thousands.
    const std::string temporary = join_path(options_.folder, temporary_name(output.stamp, base_name(output.name)));
    return save_output(fs_, join_path(options_.folder, output.name), output.content, temporary);
  }

  OutputReport perform(const Output& output) {
    OutputReport report{.name = output.name, .error = std::nullopt};
    try {  // as in perform(Job&): this thread must not throw
      const Status written = write_output(output);
      if (!written.ok()) report.error = written.error();
    } catch (const std::exception& e) {
      report.error = Error{ErrorCode::kUnavailable, e.what()};
    }
    return report;
  }

  // While job_ or output_ is set, only this thread touches its content, so it may be read without the mutex.
  void run() {
    pthread_setname_np(pthread_self(), "ckpt-write");
    MutexLock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this]() REQUIRES(mutex_) { return stop_ || job_ || output_; });
      if (output_) {
        const Output& output = *output_;
        lock.unlock();
        OutputReport report = perform(output);
        lock.lock();
        output_reports_.push_back(std::move(report));
        output_.reset();
      } else if (job_) {
        Job& job = *job_;
        lock.unlock();
        WriteReport report = perform(job);
        lock.lock();
        reports_.push_back(std::move(report));
        job_.reset();
      } else {
        return;
      }
      changed_.notify_all();
    }
  }

  std::atomic<uint64_t> operations_ended_{0};  // file operations so far
  uint64_t operations_reported_ = 0;           // operations_ended_ at the last on_progress; used by the caller's thread
  WatchedFileSystem fs_;
  CheckpointWriterOptions options_;
  std::optional<SideStream> copies_;  // nullopt on the CPU
  std::vector<StagedFile> staged_;    // used by the training thread while job_ is empty, else by the writing thread

  Mutex mutex_;
  ConditionVariable changed_;
  std::optional<Job> job_ GUARDED_BY(mutex_);        // the checkpoint in flight
  std::optional<Output> output_ GUARDED_BY(mutex_);  // the output in flight; written before job_
  std::vector<WriteReport> reports_ GUARDED_BY(mutex_);
  std::vector<OutputReport> output_reports_ GUARDED_BY(mutex_);
  bool stop_ GUARDED_BY(mutex_) = false;

  std::thread thread_;
};

CheckpointWriter::CheckpointWriter(FileSystem& fs, CheckpointWriterOptions options)
    : impl_(std::make_unique<Impl>(fs, std::move(options))) {}
CheckpointWriter::~CheckpointWriter() = default;

void CheckpointWriter::make_buffers(const CheckpointContent& content) { impl_->make_buffers(content); }
void CheckpointWriter::before_change() { impl_->before_change(); }
StageCost CheckpointWriter::stage(const CheckpointContent& content) { return impl_->stage(content); }
void CheckpointWriter::stage_output(std::string name, OutputContent content, const CheckpointStamp& stamp) {
  impl_->stage_output(std::move(name), std::move(content), stamp);
}
bool CheckpointWriter::wait_durable(const std::function<bool()>& gives_up, Writes writes) {
  return impl_->wait_durable(gives_up, writes);
}
std::vector<WriteReport> CheckpointWriter::poll_reports() { return impl_->poll_reports(); }
std::vector<OutputReport> CheckpointWriter::poll_output_reports() { return impl_->poll_output_reports(); }

}  // namespace lockstep
