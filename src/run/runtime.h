// SPDX-License-Identifier: Apache-2.0 - submit(): the one door from op calls to the device; modes, window, queue, caches.
//
// The calling thread appends op calls to a window. The mode decides when the window is cut (Strict:
// after each call; DeferAndFuse: see cut rules in runtime.cpp). A cut window becomes a Program
// (looked up by key, compiled in the background when new) and goes into a queue. One thread
// executes the queue in order, so two programs are never reordered, whatever stream they were
// submitted on.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "src/graph/call.h"
#include "src/graph/record.h"
#include "src/pjrt/client.h"
#include "src/pjrt/ffi.h"
#include "src/pjrt/plugin.h"
#include "src/run/array.h"
#include "src/run/check.h"
#include "src/run/compile_queue.h"
#include "src/run/program.h"

namespace torch_tpu::run {

enum class Mode : uint8_t { Strict, Debug, DeferAndFuse };

struct Stats {
  CompileStats compile;
  uint64_t calls = 0;         // op calls submitted
  uint64_t programs_run = 0;  // programs executed
  uint64_t memory_hits = 0;   // programs found in memory
  uint64_t traced = 0;        // op calls traced
  uint64_t scalar_uploads = 0;
  double wait_compile_seconds = 0;  // the execution thread waited for a compile
  double run_seconds = 0;           // in the execution thread, executing
};

class Runtime {
 public:
  // The process's runtime; creating it creates no client.
  static Runtime& instance();

  // Loads the plugin and makes the client, once. Throws pjrt::Error with advice.
  pjrt::Client& client();
  bool initialized() const { return initialized_.load(std::memory_order_acquire); }
  bool forked() const { return forked_.load(std::memory_order_relaxed); }
  bool is_cpu() const { return is_cpu_; }
  // A function that programs of the CPU plugin can call by this name. Before the client is made.
  static void add_host_kernel(std::string name, pjrt::HostKernel kernel);
  // Whether programs may call them: the plugin can, and TORCH_TPU_HOST_KERNELS is not 0.
  bool has_host_kernels() const { return has_host_kernels_; }
  // Bytes of device memory that programs may use.
  int64_t memory_limit();
  // Whether results of this size fit beside what is live and what is queued. Cheap; when it says
  // no, synchronize() and ask again: queued work may be about to free memory.
  bool fits(int64_t bytes) const {
    return bytes + memory_count().live.load(std::memory_order_relaxed) +
               queued_bytes_.load(std::memory_order_relaxed) +
               window_bytes_.load(std::memory_order_relaxed) <=
           memory_limit_;
  }

  Mode mode() const { return mode_.load(std::memory_order_relaxed); }
  void set_mode(Mode mode);

  std::mutex& mutex() { return mutex_; }
  // The rest of a call's inputs and results travels in one struct, so that it can be reused.
  // mutex() must be held. `results` are new arrays, one per result of the record. `inputs` are
  // moved from: the execution thread, which may be at work before this returns, donates what only
  // it holds. `origin` (may be null) matters for records with checks only.
  void submit(const graph::RecordPtr& record, std::span<ArrayPtr> inputs,
              std::span<const uint64_t> scalars, std::span<ArrayPtr> results, const Origin* origin);
  // Cuts the pending window. mutex() must be held.
  void cut();
  // Between these two nothing cuts the window but the host, when it reads or waits: the calls of a
  // training step become one program, in every mode but Debug. They nest; the outermost end_step()
  // tells into how many programs the host cut the step (1: none was cut; 0: nothing was submitted).
  void begin_step();
  size_t end_step();
  // Programs of steps that are made from now on have loops (src/graph/loops.h), or not.
  void loop_steps(std::optional<graph::LoopOptions> options);
  // Between these two nothing is run: results have sizes and dtypes only (Array::Placeholder), and
  // take no memory. They nest, and hold for all threads.
  void begin_abstract();
  void end_abstract();
  bool abstract() const { return abstract_.load(std::memory_order_relaxed) != 0; }
  // In place of end_step(), between those two: the step's calls as one program that nobody has
  // compiled. An input whose storage was overwritten gives its buffer to an output if nobody holds
  // it, save once for each time that it stands in `held`. No program: nothing was submitted.
  struct AbstractStep {
    std::shared_ptr<Program> program;
    std::vector<ArrayPtr> inputs, outputs;
    std::vector<uint64_t> scalars;  // what the calls were given, in the order of their nodes
  };
  AbstractStep end_abstract_step(std::span<const Array* const> held);

  // A host array as a device array, ready at once (between begin_abstract() and end_abstract(): a
  // placeholder, and data may be null); the memory may be reused on return.
  ArrayPtr upload(const void* data, const hlo::Type& type);
  // The same without a copy where the plugin can: data stays alive until on_release.
  ArrayPtr adopt(void* data, const hlo::Type& type, std::function<void()> on_release);
  // Waits until the array's contents are there; throws what went wrong (failed checks: see the top
  // of check.h). mutex() must not be held.
  pjrt::Buffer& await(const ArrayPtr& array);
  // Cuts and waits for everything; tells of failed checks, also of threads that have ended.
  void synchronize();
  // The same without telling, for callers that want memory to be free and numbers to be final.
  void drain();
  // Throws if checks that the calling thread submitted have failed.
  void raise_failed_checks(const Checks* read = nullptr);
  // Throws in a forked child, and after shutdown().
  void require_usable() const;
  // Programs submitted and finished so far (a stream or event is a number of this sequence).
  uint64_t submitted();
  bool finished(uint64_t sequence);
  void wait_for(uint64_t sequence);

  Stats stats() const;
  void reset_stats();
  CompileQueue& compile_queue();
  size_t programs_in_memory();
  // Lets go of the program of a record that nobody will submit any more.
  void forget(const graph::RecordPtr& record);
  // Drops idle executables (empty_cache).
  void clear_programs();
  // A function that is told every program that is made (for dumping).
  void on_program(std::function<void(const Program&)> observer);
  // Ends the threads; later calls throw. Called at exit.
  void shutdown();
  // Called in the child after fork().
  void mark_forked() { forked_ = initialized_.load(); }

 private:
  Runtime();

  struct Invocation {
    std::shared_ptr<Program> program;
    std::vector<ArrayPtr> inputs;
    std::vector<uint64_t> scalars;
    std::vector<ArrayPtr> outputs;
    std::vector<Origin> origins;  // one per checked node
  };
  struct WindowNode {
    const graph::RecordPtr* record;  // of a call site, which lives as long as the process
    uint32_t first_operand, operand_count, first_result, first_scalar;
    const std::string* line =
        nullptr;  // of an abstract step; otherwise programs must not depend on it
  };

  void start();
  std::shared_ptr<Program> find_or_make(const graph::Key& key,
                                        const std::function<std::shared_ptr<Program>()>& make);
  Invocation& next_invocation();
  void publish();
  void execute_loop();
  void execute(Invocation& invocation);
  void bound_executables();
  PJRT_Buffer* scalar_buffer(hlo::DType dtype, const std::vector<uint64_t>& words);
  void settle_checks(Invocation& invocation, pjrt::Buffer words);
  void wait_executed(uint64_t sequence);
  bool boundary(const graph::Record* record);
  void append(const graph::RecordPtr& record, std::span<ArrayPtr> inputs,
              std::span<const uint64_t> scalars, std::span<ArrayPtr> results);
  std::vector<int32_t> live_results() const;
  std::shared_ptr<Program> window_program(const graph::Key& key, std::vector<int32_t> live) const;
  void clear_window();
  void cut_for_host();
  void submit_alone(const graph::RecordPtr& record, std::span<ArrayPtr> inputs,
                    std::span<const uint64_t> scalars, std::span<ArrayPtr> results,
                    const Origin* origin);

  std::mutex mutex_;
  std::atomic<Mode> mode_{Mode::Strict};
  std::atomic<bool> initialized_{false}, forked_{false}, stopping_{false};
  std::atomic<int> abstract_{0};
  std::mutex init_mutex_;
  std::shared_ptr<pjrt::Client> client_;
  PJRT_Device* device_ = nullptr;
  bool has_host_kernels_ = false;
  bool is_cpu_ = true;
  std::unique_ptr<CompileQueue> compiler_;
  int64_t memory_limit_ = 0;
  std::atomic<int64_t> queued_bytes_{0};  // of programs in the queue
  std::atomic<int64_t> window_bytes_{0};  // of all results in the window, also those that will die

  // The pending window (guarded by mutex_).
  uint64_t window_id_ = 1;
  int step_depth_ = 0;
  size_t step_programs_ = 0;
  std::optional<graph::LoopOptions> step_loops_;
  std::vector<WindowNode> window_;
  std::vector<ArrayPtr> window_inputs_;
  std::vector<int32_t> window_operands_;
  std::vector<uint64_t> window_scalars_;
  std::vector<ArrayPtr> window_results_;
  std::vector<Origin> window_origins_;  // of the nodes with checks
  std::deque<graph::RecordPtr>
      window_records_;  // of an abstract step, which may outlive its kernels
  graph::KeyHasher window_hash_;
  // Detection of repeated sequences.
  std::vector<const graph::Record*> history_;
  uint64_t position_ = 1, period_ = 0, run_ = 0;

  // Programs by key.
  std::mutex programs_mutex_;
  std::unordered_map<graph::Key, std::shared_ptr<Program>, graph::KeyHash> programs_;

  // Execution queue: a ring written under mutex_, read by the execution thread.
  static constexpr size_t kRing = 512;
  std::vector<Invocation> ring_;
  alignas(64) std::atomic<uint64_t> head_{0};  // next to execute
  alignas(64) std::atomic<uint64_t> tail_{0};  // next to write
  alignas(64) std::atomic<uint32_t> sleeping_{0};
  std::thread execute_thread_;
  // Programs whose execute call has returned but whose results were not yet there.
  std::mutex running_mutex_;
  std::deque<std::pair<uint64_t, std::shared_ptr<pjrt::Event>>> running_;

  // Execution thread's own.
  std::vector<PJRT_Buffer*> raw_inputs_, raw_outputs_;
  std::vector<int64_t> non_donatable_;
  std::vector<uint64_t> pack_words_;
  std::unordered_map<graph::Key, pjrt::Buffer, graph::KeyHash> scalar_cache_;
  std::vector<pjrt::Buffer> scalar_once_;
  uint64_t runs_ = 0, new_programs_ = 0;
  size_t max_executables_ = 4096;  // TORCH_TPU_MAX_EXECUTABLES

  std::atomic<uint64_t> calls_{0}, programs_run_{0}, memory_hits_{0}, run_ns_{0}, wait_ns_{0},
      uploads_{0};
};

int pjrt_type(hlo::DType dtype);

}  // namespace torch_tpu::run
