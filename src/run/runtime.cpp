// SPDX-License-Identifier: Apache-2.0 - The window and its cut rules, the queue and the execution thread.
#include "src/run/runtime.h"

#include <malloc.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <utility>

#include "src/pjrt/element_type.h"
#include "src/pjrt/error.h"

namespace torch_tpu::run {

using Clock = std::chrono::steady_clock;
using graph::Record;
using graph::RecordPtr;
using graph::UserError;

namespace {

// DeferAndFuse: a window is cut when it has this many op calls. Larger programs gain little (the
// per-op cost is flat from here) and start executing later.
constexpr size_t kWindow = 64;
// A step of more calls than this is not one that a compiler would be done with.
constexpr size_t kStep = 50000;
constexpr uint64_t kHistory = 4096;  // longest repeated sequence looked for

// How long the execution thread looks for work before it sleeps, in turns of a pause. Strict:
// longer than Python takes from one op to the next, as being woken costs more than an op.
// DeferAndFuse: a window takes much longer to fill, and on two cores a spinning thread takes from
// the caller's time and from the plugin's threads (measured: 3000 turns made the chain of adds
// slower by half in every other run).
int spins_in(Mode mode) { return mode == Mode::DeferAndFuse ? 1000 : 3000; }

uint64_t nanoseconds_since(Clock::time_point t) {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - t).count());
}

// The CPU plugin takes a program's memory from malloc at each run and gives it back. What glibc
// maps for that is zeroed page by page by the kernel each time: a sixth of the time of a GPT
// training step (15,000 page faults). So freed memory stays with the process, up to a bound, and
// one arena serves all threads, as the others cannot hold a block of more than 64 MiB. A user who
// has set an allocator's variables knows better.
void keep_freed_memory() {
#if defined(__GLIBC__)
  for (const char* name : {"GLIBC_TUNABLES", "MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_",
                           "MALLOC_TRIM_THRESHOLD_", "MALLOC_ARENA_MAX"})
    if (std::getenv(name) != nullptr) return;
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  mallopt(M_ARENA_MAX, 1);
#endif
}

int64_t physical_memory() {
  int64_t bytes = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE);
  for (const char* path :
       {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    std::ifstream in(path);
    int64_t limit = 0;
    if (in >> limit && limit > 0) bytes = std::min(bytes, limit);
  }
  return bytes;
}

}  // namespace

int pjrt_type(hlo::DType dtype) {
  using hlo::DType;
  switch (dtype) {
    case DType::Pred:
      return pjrt::kPred;
    case DType::S8:
      return pjrt::kS8;
    case DType::S16:
      return pjrt::kS16;
    case DType::S32:
      return pjrt::kS32;
    case DType::S64:
      return pjrt::kS64;
    case DType::U8:
      return pjrt::kU8;
    case DType::U16:
      return pjrt::kU16;
    case DType::U32:
      return pjrt::kU32;
    case DType::U64:
      return pjrt::kU64;
    case DType::F16:
      return pjrt::kF16;
    case DType::BF16:
      return pjrt::kBF16;
    case DType::F32:
      return pjrt::kF32;
    case DType::F64:
      return pjrt::kF64;
    case DType::C64:
      return pjrt::kC64;
    case DType::C128:
      return pjrt::kC128;
    case DType::F8E4M3FN:
      return pjrt::kF8E4M3FN;
    case DType::F8E5M2:
      return pjrt::kF8E5M2;
    case DType::F8E4M3FNUZ:
      return pjrt::kF8E4M3FNUZ;
    case DType::F8E5M2FNUZ:
      return pjrt::kF8E5M2FNUZ;
    case DType::F8E8M0FNU:
      return pjrt::kF8E8M0FNU;
    case DType::F4E2M1FN:
      return pjrt::kF4E2M1FN;
    case DType::C32:
      return pjrt::kU32;
  }
  return pjrt::kInvalid;
}

Runtime& Runtime::instance() {
  // Never destroyed: arrays may outlive every static destructor.
  static Runtime* runtime = [] {
    auto* r = new Runtime;
    pthread_atfork(nullptr, nullptr, [] { Runtime::instance().mark_forked(); });
    return r;
  }();
  return *runtime;
}

Runtime::Runtime() : ring_(kRing) {
  if (const char* v = std::getenv("TORCH_TPU_DEFER_AND_FUSE"); v != nullptr && *v == '1')
    mode_ = Mode::DeferAndFuse;
  if (const char* v = std::getenv("TORCH_TPU_LAUNCH_BLOCKING"); v != nullptr && *v == '1')
    mode_ = Mode::Debug;
}

void Runtime::require_usable() const {
  if (forked())
    throw UserError(
        UserError::Runtime,
        "Cannot re-initialize tpu in a forked subprocess: the parent process had used the "
        "device before fork(). Use the 'spawn' or 'forkserver' start method, or keep "
        "device work out of the child (DataLoader workers should return CPU tensors)");
  if (stopping_.load(std::memory_order_relaxed))
    throw UserError(UserError::Runtime,
                    "the tpu device has been shut down (the interpreter is exiting)");
}

using HostKernels = std::vector<std::pair<std::string, pjrt::HostKernel>>;
// Filled while the library is loaded, hence not a plain global.
static HostKernels& host_kernels() {
  static HostKernels kernels;
  return kernels;
}

pjrt::Client& Runtime::client() {
  if (!initialized()) start();
  return *client_;
}

void Runtime::add_host_kernel(std::string name, pjrt::HostKernel kernel) {
  host_kernels().emplace_back(std::move(name), kernel);
}

void Runtime::start() {
  require_usable();
  std::lock_guard lock(init_mutex_);
  if (initialized()) return;
  pjrt::PluginChoice choice = pjrt::Plugin::choose();
  auto plugin = pjrt::Plugin::load(choice.path);
  pjrt::ClientOptions options;
  options.cpu_device_count = 1;
  options.asynchronous = false;  // our own execution thread makes the plugin's superfluous
  if (plugin->is_cpu_plugin()) keep_freed_memory();  // before there are threads with arenas
  client_ = pjrt::Client::create(plugin, options);
  device_ = client_->device(0);
  is_cpu_ = client_->is_cpu();
  const char* wanted = std::getenv("TORCH_TPU_HOST_KERNELS");
  has_host_kernels_ = is_cpu_ && pjrt::ffi_supported(*plugin) &&
                      !(wanted != nullptr && std::string_view(wanted) == "0");
  if (has_host_kernels_) {
    for (const auto& [name, kernel] : host_kernels()) pjrt::register_handler(*plugin, name, kernel);
  }
  if (const char* mb = std::getenv("TORCH_TPU_MEMORY_LIMIT_MB"); mb != nullptr)
    memory_limit_ = std::atoll(mb) << 20;
  if (memory_limit_ <= 0) {
    auto stats = client_->memory_stats(device_);
    memory_limit_ = stats && stats->bytes_limit > 0 ? stats->bytes_limit : physical_memory();
  }
  if (const char* n = std::getenv("TORCH_TPU_MAX_EXECUTABLES"); n != nullptr && std::atoll(n) > 0)
    max_executables_ = static_cast<size_t>(std::atoll(n));
  compiler_ = std::make_unique<CompileQueue>(client_);
  execute_thread_ = std::thread([this] { execute_loop(); });
  initialized_.store(true, std::memory_order_release);
}

int64_t Runtime::memory_limit() {
  client();
  return memory_limit_;
}

CompileQueue& Runtime::compile_queue() {
  client();
  return *compiler_;
}

void Runtime::set_mode(Mode mode) {
  std::lock_guard lock(mutex_);
  cut_for_host();
  mode_ = mode;
}

// ---- submit and cut ----------------------------------------------------------------------------

void Runtime::submit(const RecordPtr& record, std::span<ArrayPtr> inputs,
                     std::span<const uint64_t> scalars, std::span<ArrayPtr> results,
                     const Origin* origin) {
  require_usable();
  if (!initialized()) start();
  calls_.store(calls_.load(std::memory_order_relaxed) + 1,
               std::memory_order_relaxed);  // under mutex_
  const Record& r = *record;
  if (abstract()) {
    if (step_depth_ != 0) {
      window_records_.push_back(record);
      append(window_records_.back(), inputs, scalars, results);
      if (origin != nullptr) window_.back().line = origin->line;
    }
    for (ArrayPtr& result : results) result->set_placeholder();
    return;
  }
  const bool in_step = step_depth_ != 0 && mode() != Mode::Debug;
  if (!in_step && mode() != Mode::DeferAndFuse) {
    submit_alone(record, inputs, scalars, results, origin);
    return;
  }
  if (!in_step && (r.last_position == 0 || r.whole)) {
    // Never seen: a program of its own. Shapes that grow in a loop (the tokens so far, a mask)
    // would otherwise make every window around them new in each iteration. A compiled graph is one
    // by intention.
    boundary(record.get());
    submit_alone(record, inputs, scalars, results, origin);
    return;
  }
  append(record, inputs, scalars, results);
  if (!in_step) {  // of a whole step most die in the program
    int64_t bytes = 0;
    for (const ArrayPtr& result : results) bytes += result->type().bytes();
    window_bytes_.store(window_bytes_.load(std::memory_order_relaxed) + bytes,
                        std::memory_order_relaxed);  // under mutex_
  }
  if (r.error_result >= 0) window_origins_.push_back(origin != nullptr ? *origin : Origin{});
  if (in_step) {
    if (window_.size() >= kStep) cut();
    return;
  }
  bool repeated = boundary(record.get());
  if (window_.size() >= kWindow || repeated) cut();
}

// Writes a call down at the end of the window.
void Runtime::append(const RecordPtr& record, std::span<ArrayPtr> inputs,
                     std::span<const uint64_t> scalars, std::span<ArrayPtr> results) {
  WindowNode node;
  node.record = &record;
  node.first_operand = static_cast<uint32_t>(window_operands_.size());
  node.operand_count = static_cast<uint32_t>(inputs.size());
  node.first_result = static_cast<uint32_t>(window_results_.size());
  node.first_scalar = static_cast<uint32_t>(window_scalars_.size());
  window_hash_.word(record->key.lo);
  for (ArrayPtr& in : inputs) {
    Array& a = *in;
    int32_t code;
    if (a.window == window_id_ && a.result_index >= 0) {
      code = a.result_index;
    } else {
      if (a.window != window_id_) {
        a.window = window_id_;
        a.result_index = -1;
        a.input_index = static_cast<int32_t>(window_inputs_.size());
        window_inputs_.push_back(std::move(in));
      }
      code = ~a.input_index;
    }
    window_operands_.push_back(code);
    window_hash_.word(static_cast<uint64_t>(static_cast<int64_t>(code)));
  }
  window_scalars_.insert(window_scalars_.end(), scalars.begin(), scalars.end());
  for (size_t i = 0; i < results.size(); ++i) {
    Array& a = *results[i];
    a.window = window_id_;
    a.result_index = static_cast<int32_t>(window_results_.size());
    window_results_.push_back(results[i]);
  }
  window_.push_back(std::move(node));
}

// True at the end of a repeated sequence of op calls (a loop body), so that windows line up with
// the loop and the same programs come back every iteration. Looks at the records only: position p
// continues a period L when it equals position p - L; after L such positions in a row the sequence
// has been seen twice, and this is its end. Short bodies share a window.
bool Runtime::boundary(const Record* record) {
  uint64_t p = position_++;
  if (history_.empty()) history_.resize(kHistory);
  bool at_end = false;
  if (period_ != 0 && p >= period_ && history_[(p - period_) % kHistory] == record) {
    ++run_;
    if (run_ % period_ == 0) {
      uint64_t bodies = window_.size() / period_;
      // Cut where another body would not fit any more.
      at_end = window_.size() % period_ != 0 || (bodies + 1) * period_ > kWindow;
    }
  } else {
    uint64_t seen = record->last_position;  // 0: never
    period_ = seen != 0 && p - seen < kHistory ? p - seen : 0;
    run_ = period_ == 0 ? 0 : 1;
    at_end = false;
  }
  record->last_position = p;
  history_[p % kHistory] = record;
  return at_end;
}

void Runtime::cut() {
  if (window_.empty() || abstract()) return;
  ++step_programs_;
  std::vector<int32_t> live = live_results();
  graph::KeyHasher hash = window_hash_;
  for (int32_t i : live) hash.word(static_cast<uint64_t>(i));
  hash.word(live.size());
  const std::optional<graph::LoopOptions> loops = step_depth_ != 0 ? step_loops_ : std::nullopt;
  if (loops) {
    hash.word(static_cast<uint64_t>(loops->turns));
    hash.word(static_cast<uint64_t>(loops->saved));
  }
  graph::Key key = hash.finish();
  std::shared_ptr<Program> program = find_or_make(key, [&] {
    std::shared_ptr<Program> made = window_program(key, live);
    if (loops) made->set_loops(*loops);
    return made;
  });
  if (program->output_count() > 0) {
    Invocation& inv = next_invocation();
    inv.program = program;
    std::swap(inv.inputs, window_inputs_);
    std::swap(inv.scalars, window_scalars_);
    for (int32_t i : live) inv.outputs.push_back(window_results_[i]);
    std::swap(inv.origins, window_origins_);
    publish();
  }
  clear_window();
}

// Which results anybody but the window holds. Each is held once by window_results_; a smaller count
// can't appear behind our back, as new holders come only through a storage, under mutex_.
std::vector<int32_t> Runtime::live_results() const {
  std::vector<int32_t> live;
  for (size_t i = 0; i < window_results_.size(); ++i) {
    if (window_results_[i]->references() > 1) live.push_back(static_cast<int32_t>(i));
  }
  return live;
}

std::shared_ptr<Program> Runtime::window_program(const graph::Key& key,
                                                 std::vector<int32_t> live) const {
  std::vector<ProgramNode> nodes;
  std::vector<hlo::Type> inputs;
  for (const WindowNode& n : window_) {
    ProgramNode node{*n.record, {}, n.line};
    for (uint32_t i = 0; i < n.operand_count; ++i)
      node.operands.push_back(window_operands_[n.first_operand + i]);
    nodes.push_back(std::move(node));
  }
  for (const ArrayPtr& in : window_inputs_) inputs.push_back(in->type());
  return std::make_shared<Program>(key, std::move(nodes), std::move(inputs), std::move(live));
}

void Runtime::clear_window() {
  // Results nobody holds never get a buffer.
  for (ArrayPtr& a : window_results_) {
    a->window = 0;
    a->result_index = -1;
  }
  window_.clear();
  window_inputs_.clear();
  window_operands_.clear();
  window_scalars_.clear();
  window_results_.clear();
  window_origins_.clear();
  window_records_.clear();
  window_hash_ = {};
  window_bytes_.store(0, std::memory_order_relaxed);
  ++window_id_;
}

void Runtime::begin_step() {
  if (!initialized()) start();
  std::lock_guard lock(mutex_);
  if (step_depth_++ != 0) return;
  cut_for_host();
  step_programs_ = 0;
}

size_t Runtime::end_step() {
  std::lock_guard lock(mutex_);
  if (step_depth_ == 1 && !abstract()) cut_for_host();
  if (--step_depth_ != 0) return 1;
  if (!abstract()) return step_programs_;
  clear_window();  // nobody wants the program
  return 1;
}

void Runtime::loop_steps(std::optional<graph::LoopOptions> options) {
  std::lock_guard lock(mutex_);
  step_loops_ = std::move(options);
}

void Runtime::begin_abstract() {
  if (!initialized()) start();
  std::lock_guard lock(mutex_);
  if (!abstract()) cut_for_host();
  abstract_.fetch_add(1, std::memory_order_relaxed);
}

void Runtime::end_abstract() {
  std::lock_guard lock(mutex_);
  abstract_.fetch_sub(1, std::memory_order_relaxed);
}

Runtime::AbstractStep Runtime::end_abstract_step(std::span<const Array* const> held) {
  std::lock_guard lock(mutex_);
  AbstractStep step;
  if (--step_depth_ != 0) return step;
  if (!window_.empty()) {
    const std::vector<int32_t> live = live_results();
    step.program = window_program({}, live);
    std::vector<bool> kept;
    for (const ArrayPtr& in : window_inputs_)
      kept.push_back(in->references() > 1 + std::count(held.begin(), held.end(), in.get()));
    step.program->keep(kept);
    for (int32_t i : live) step.outputs.push_back(window_results_[i]);
    std::swap(step.inputs, window_inputs_);
    std::swap(step.scalars, window_scalars_);
  }
  clear_window();
  return step;
}

// Where the host reads or waits, a loop body has one of its ends: it is looked for anew from there,
// so that no other cut is made in its middle, and the cuts depend on one earlier body only.
void Runtime::cut_for_host() {
  if (!window_.empty()) cut();
  period_ = run_ = 0;
}

// Strict and Debug: the call is a program of its own, found through its record.
void Runtime::submit_alone(const RecordPtr& record, std::span<ArrayPtr> inputs,
                           std::span<const uint64_t> scalars, std::span<ArrayPtr> results,
                           const Origin* origin) {
  if (!window_.empty()) cut();
  const Record& r = *record;
  if (!r.program) {
    graph::KeyHasher hash;
    hash.word(r.key.hi);
    hash.word(r.key.lo);
    hash.word(0x5714C7);  // a program of one call with all results live
    graph::Key key = hash.finish();
    auto make = [&] {
      ProgramNode node{record, {}};
      std::vector<int32_t> live;
      for (size_t i = 0; i < inputs.size(); ++i) node.operands.push_back(~static_cast<int32_t>(i));
      for (size_t i = 0; i < results.size(); ++i)
        if (static_cast<int32_t>(i) != r.error_result) live.push_back(static_cast<int32_t>(i));
      std::vector<ProgramNode> nodes;
      nodes.push_back(std::move(node));
      return std::make_shared<Program>(key, std::move(nodes), r.input_types, live);
    };
    r.program = find_or_make(key, make);
  } else {
    memory_hits_.fetch_add(1, std::memory_order_relaxed);
  }
  auto program = std::static_pointer_cast<Program>(r.program);
  if (program->output_count() == 0) return;
  Invocation& inv = next_invocation();
  inv.program = std::move(program);
  inv.inputs.assign(std::make_move_iterator(inputs.begin()), std::make_move_iterator(inputs.end()));
  inv.scalars.assign(scalars.begin(), scalars.end());
  for (size_t i = 0; i < results.size(); ++i)
    if (static_cast<int32_t>(i) != r.error_result) inv.outputs.push_back(results[i]);
  if (r.error_result >= 0) inv.origins.push_back(origin != nullptr ? *origin : Origin{});
  publish();
}

std::shared_ptr<Program> Runtime::find_or_make(
    const graph::Key& key, const std::function<std::shared_ptr<Program>()>& make) {
  {
    std::lock_guard lock(programs_mutex_);
    auto it = programs_.find(key);
    if (it != programs_.end()) {
      memory_hits_.fetch_add(1, std::memory_order_relaxed);
      return it->second;
    }
  }
  std::shared_ptr<Program> program = make();
  {
    std::lock_guard lock(programs_mutex_);
    programs_[key] = program;
  }
  if (program->output_count() > 0) compiler_->add(program);
  return program;
}

size_t Runtime::programs_in_memory() {
  std::lock_guard lock(programs_mutex_);
  return programs_.size();
}

void Runtime::clear_programs() {
  std::lock_guard lock(programs_mutex_);
  // Programs that a record holds come back through it; the others are compiled or loaded again.
  std::erase_if(programs_, [](const auto& p) { return p.second.use_count() == 1; });
}

void Runtime::forget(const RecordPtr& record) {
  std::shared_ptr<void> program;
  {
    std::lock_guard lock(mutex_);
    if (!window_.empty()) cut();  // whose calls borrow their records
    program = std::exchange(record->program, nullptr);
  }
  if (!program) return;
  std::lock_guard lock(programs_mutex_);
  auto found = programs_.find(std::static_pointer_cast<Program>(program)->key());
  if (found != programs_.end() && found->second == program) programs_.erase(found);
}

void Runtime::on_program(std::function<void(const Program&)> observer) {
  compile_queue().on_program(std::move(observer));
}

// ---- the queue ---------------------------------------------------------------------------------

Runtime::Invocation& Runtime::next_invocation() {
  uint64_t tail = tail_.load(std::memory_order_relaxed);
  // Full: wait for the execution thread (which needs neither mutex_ nor the GIL).
  while (tail - head_.load(std::memory_order_acquire) >= kRing) std::this_thread::yield();
  return ring_[tail % kRing];
}

void Runtime::publish() {
  uint64_t tail = tail_.load(std::memory_order_relaxed);
  const Invocation& inv = ring_[tail % kRing];
  queued_bytes_.fetch_add(inv.program->new_bytes(), std::memory_order_relaxed);
  for (const Origin& o : inv.origins)
    if (o.ledger) o.ledger->last.store(tail + 1, std::memory_order_relaxed);
  tail_.fetch_add(1, std::memory_order_seq_cst);
  if (sleeping_.load(std::memory_order_seq_cst) != 0) {
    sleeping_.store(0, std::memory_order_seq_cst);
    sleeping_.notify_one();
  }
  if (mode() == Mode::Debug) {
    wait_for(tail + 1);
    raise_failed_checks();
  }
}

void Runtime::execute_loop() {
  while (true) {
    uint64_t head = head_.load(std::memory_order_relaxed);
    int spins = 0;
    // Read once: mode_ shares a cache line with the mutex that callers take for every op.
    const int limit = spins_in(mode());
    while (tail_.load(std::memory_order_acquire) == head) {
      if (stopping_.load(std::memory_order_relaxed)) return;
      if (++spins < limit) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
        continue;
      }
      sleeping_.store(1, std::memory_order_seq_cst);
      if (tail_.load(std::memory_order_seq_cst) == head && !stopping_)
        sleeping_.wait(1, std::memory_order_seq_cst);
      sleeping_.store(0, std::memory_order_seq_cst);
      spins = 0;
    }
    Invocation& inv = ring_[head % kRing];
    execute(inv);
    queued_bytes_.fetch_sub(inv.program->new_bytes(), std::memory_order_relaxed);
    inv.program.reset();
    inv.inputs.clear();
    inv.scalars.clear();
    inv.outputs.clear();
    inv.origins.clear();
    head_.store(head + 1, std::memory_order_release);
  }
}

PJRT_Buffer* Runtime::scalar_buffer(hlo::DType dtype, const std::vector<uint64_t>& words) {
  // To the element width.
  uint64_t packed[64];
  std::vector<uint64_t> large;
  size_t n = words.size();
  void* data = packed;
  if (n > 64) {
    large.resize(n);
    data = large.data();
  }
  int64_t width = hlo::byte_size(dtype);
  if (width == 8) {
    std::memcpy(data, words.data(), n * 8);
  } else {
    auto* out = static_cast<uint32_t*>(data);
    for (size_t i = 0; i < n; ++i) out[i] = static_cast<uint32_t>(words[i]);
  }
  int64_t dims[1] = {static_cast<int64_t>(n)};
  if (dtype == hlo::DType::U32) {  // seeds and offsets: never the same twice
    scalar_once_.push_back(client_->from_host(data, pjrt_type(dtype), dims, device_));
    return scalar_once_.back().raw();
  }
  graph::KeyHasher hash;
  hash.word(static_cast<uint64_t>(dtype));
  hash.words(words.data(), n);
  graph::Key key = hash.finish();
  auto it = scalar_cache_.find(key);
  if (it != scalar_cache_.end()) return it->second.raw();
  // Not while this program's own buffers are in it.
  uploads_.fetch_add(1, std::memory_order_relaxed);
  return scalar_cache_.emplace(key, client_->from_host(data, pjrt_type(dtype), dims, device_))
      .first->second.raw();
}

// Bounds the executables in memory: drops the quarter that was not run for longest. They come back
// from disk in about a millisecond.
void Runtime::bound_executables() {
  std::vector<std::shared_ptr<Program>> loaded;
  {
    std::lock_guard lock(programs_mutex_);
    for (auto& [key, program] : programs_)
      if (program->state() == Program::Compiled && program->last_run != 0)
        loaded.push_back(program);
  }
  if (loaded.size() <= max_executables_) return;
  auto middle = loaded.begin() + static_cast<std::ptrdiff_t>(loaded.size() / 4);
  std::nth_element(loaded.begin(), middle, loaded.end(),
                   [](const auto& a, const auto& b) { return a->last_run < b->last_run; });
  for (auto it = loaded.begin(); it != middle; ++it) (*it)->unload();
}

void Runtime::execute(Invocation& inv) {
  Program& program = *inv.program;
  auto fail = [&](std::string message) {
    auto error = std::make_shared<const std::string>(std::move(message));
    for (ArrayPtr& out : inv.outputs) out->set_error(error);
  };
  if (program.state() == Program::Unloaded) {
    program.reload();
    compiler_->add(inv.program);
  }
  program.last_run = ++runs_;
  if (program.state() == Program::Waiting) {
    auto begin = Clock::now();
    // A new program: the moment to look whether there are too many.
    if (++new_programs_ % 256 == 0) bound_executables();
    while (program.state() == Program::Waiting && !stopping_) program.wait();
    wait_ns_.fetch_add(nanoseconds_since(begin), std::memory_order_relaxed);
  }
  if (stopping_) return fail("the tpu device was shut down");
  if (program.state() == Program::Broken) return fail(program.error());
  auto begin = Clock::now();
  try {
    if (scalar_cache_.size() > 4096) scalar_cache_.clear();
    raw_inputs_.clear();
    non_donatable_.clear();
    const auto& donations = program.donations();
    bool checks = !program.checked().empty();
    for (size_t i = 0; i < inv.inputs.size(); ++i) {
      Array& a = *inv.inputs[i];
      if (a.state() == Array::Failed) return fail(a.error());
      if (a.state() == Array::Placeholder)
        return fail("an argument of " + describe(program, 100) +
                    " was made for ahead-of-time compilation and has no values");
      if (a.state() != Array::Ready) return fail("internal error: an input was not executed");
      if (a.checks()) checks = true;
      raw_inputs_.push_back(a.buffer().raw());
      if (donations[i] >= 0) {
        bool sole = a.references() == 1;
        for (size_t k = 0; sole && k < inv.inputs.size(); ++k)
          if (k != i && inv.inputs[k] == inv.inputs[i]) sole = false;
        if (!sole) non_donatable_.push_back(static_cast<int64_t>(i));
      }
    }
    for (const ScalarPack& p : program.packs()) {
      pack_words_.clear();
      for (uint32_t s : p.scalars) pack_words_.push_back(inv.scalars[s]);
      raw_inputs_.push_back(scalar_buffer(p.dtype, pack_words_));
    }
    raw_outputs_.assign(program.output_count(), nullptr);
    program.executable().execute(raw_inputs_, non_donatable_, raw_outputs_);
    scalar_once_.clear();
    const PJRT_Api* api = client_->api();
    size_t skip = 0;
    for (size_t i = 0; i < inv.inputs.size(); ++i) {
      if (donations[i] < 0) continue;
      if (skip < non_donatable_.size() && non_donatable_[skip] == static_cast<int64_t>(i)) {
        ++skip;
        continue;
      }
      inv.inputs[i]->consumed();
    }
    // Before the results: who waits for one of them looks at the checks next.
    if (checks)
      settle_checks(
          inv, program.checked().empty() ? pjrt::Buffer() : pjrt::Buffer(api, raw_outputs_.back()));
    for (size_t i = 0; i < inv.outputs.size(); ++i)
      inv.outputs[i]->set_buffer(pjrt::Buffer(api, raw_outputs_[i]));
    // Small programs have finished by now; of the others an event is kept for queries that tell
    // the truth (not the array: a second holder would forbid its donation).
    if (!inv.outputs.empty() && !inv.outputs.front()->buffer().ready()) {
      pjrt::Event done = inv.outputs.front()->buffer().ready_event();
      std::lock_guard lock(running_mutex_);
      running_.emplace_back(head_.load(std::memory_order_relaxed) + 1,
                            std::make_shared<pjrt::Event>(std::move(done)));
      while (running_.size() > 1 && running_.front().second->ready()) running_.pop_front();
    }
  } catch (const std::exception& e) {
    scalar_once_.clear();
    fail("running " + describe(program, 100) + " failed: " + e.what());
  }
  programs_run_.fetch_add(1, std::memory_order_relaxed);
  run_ns_.fetch_add(nanoseconds_since(begin), std::memory_order_relaxed);
}

// Which checks the results depend on: this program's own, and those of its inputs. Nothing is left
// of them when all have held, which the CPU plugin mostly knows at once.
void Runtime::settle_checks(Invocation& inv, pjrt::Buffer words) {
  Program& program = *inv.program;
  const size_t calls = program.checked().size();
  std::vector<ChecksPtr> own(calls);
  bool any = false;
  if (calls != 0) {
    auto shared = std::make_shared<ErrorWords>(std::move(words), calls);
    if (!shared->known() || !shared->all_held()) {
      for (size_t i = 0; i < calls; ++i) {
        const Origin& origin = inv.origins[i];
        auto check = std::make_shared<Check>(
            runs_, shared, i, program.nodes()[program.checked()[i]].record, origin.line);
        if (check->state() == Check::Held) continue;
        (origin.ledger ? origin.ledger : Ledger::nobodys())->add(check);
        own[i] = std::make_shared<Checks>(Checks{std::move(check)});
        any = true;
      }
    }
  }
  for (const ArrayPtr& in : inv.inputs)
    if (in->checks()) any = true;
  if (!any) return;
  // Of a training step most results depend on the same checks: those share one set, which also
  // keeps the next step's inputs from having a set each.
  std::vector<std::pair<std::vector<ChecksPtr>, ChecksPtr>> joined;
  std::vector<ChecksPtr> all;
  const auto& dependences = program.dependences();
  for (size_t i = 0; i < inv.outputs.size(); ++i) {
    all.clear();
    auto add = [&](const ChecksPtr& checks) {
      if (checks && std::find(all.begin(), all.end(), checks) == all.end()) all.push_back(checks);
    };
    for (int32_t k : dependences[i].inputs) add(inv.inputs[k]->checks());
    for (int32_t k : dependences[i].checked) add(own[k]);
    if (all.empty()) continue;
    auto known =
        std::find_if(joined.begin(), joined.end(), [&](const auto& j) { return j.first == all; });
    if (known == joined.end()) known = joined.insert(known, {all, join(all)});
    inv.outputs[i]->set_checks(known->second);
  }
}

// ---- host side waits ---------------------------------------------------------------------------

ArrayPtr Runtime::upload(const void* data, const hlo::Type& type) {
  require_usable();
  pjrt::Client& c = client();
  if (abstract()) {
    ArrayPtr a(new Array(intern(type)));
    a->set_placeholder();
    return a;
  }
  if (!fits(type.bytes())) {
    drain();
    if (!fits(type.bytes()))
      throw UserError(UserError::OutOfMemory,
                      "tpu out of memory: copying to the device needs " +
                          std::to_string(type.bytes() >> 20) + " MiB; " +
                          std::to_string(memory_count().live.load() >> 20) + " MiB of " +
                          std::to_string(memory_limit_ >> 20) +
                          " MiB are in use. Free tensors, or use a smaller batch");
  }
  ArrayPtr a(new Array(intern(type)));
  static const char nothing = 0;
  a->set_buffer(
      c.from_host(data != nullptr ? data : &nothing, pjrt_type(type.dtype), type.dims, device_));
  return a;
}

ArrayPtr Runtime::adopt(void* data, const hlo::Type& type, std::function<void()> on_release) {
  require_usable();
  pjrt::Client& c = client();
  ArrayPtr a(new Array(intern(type)));
  a->set_buffer(c.from_host(data, pjrt_type(type.dtype), type.dims, device_,
                            pjrt::HostSemantics::zero_copy_until_released, std::move(on_release)));
  return a;
}

pjrt::Buffer& Runtime::await(const ArrayPtr& array) {
  require_usable();
  {
    // Also when the array is not of this window: where the host reads, every iteration of a loop is
    // cut at the same place.
    std::lock_guard lock(mutex_);
    cut_for_host();
  }
  if (array->state() == Array::Pending) array->wait();
  raise_failed_checks(array->checks().get());
  if (array->state() == Array::Failed) throw UserError(UserError::Runtime, array->error());
  if (array->state() == Array::Placeholder)
    throw UserError(
        UserError::Runtime,
        "a value was read that is not there: the tensor has only a shape and a dtype, because a "
        "function is being traced or was made for ahead-of-time compilation. What a function does "
        "must not depend on data then");
  array->buffer().await();
  return array->buffer();
}

void Runtime::raise_failed_checks(const Checks* read) {
  // A thread is told of its own calls wherever it waits, so they must have run; that what it reads
  // is there says nothing about them.
  if (const Ledger* mine = Ledger::mine_or_null())
    wait_executed(mine->last.load(std::memory_order_relaxed));
  tell_failed_checks(read);
}

uint64_t Runtime::submitted() {
  std::lock_guard lock(mutex_);
  cut_for_host();
  return tail_.load();
}

bool Runtime::finished(uint64_t sequence) {
  if (head_.load(std::memory_order_acquire) < sequence) return false;
  std::lock_guard lock(running_mutex_);
  for (auto& [number, event] : running_)
    if (number <= sequence && !event->ready()) return false;
  return true;
}

void Runtime::wait_executed(uint64_t sequence) {
  int spins = 0;
  while (head_.load(std::memory_order_acquire) < sequence) {
    if (++spins < 4000) {
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(spins < 8000 ? 5 : 50));
    }
  }
}

void Runtime::wait_for(uint64_t sequence) {
  wait_executed(sequence);
  std::deque<std::pair<uint64_t, std::shared_ptr<pjrt::Event>>> running;
  {
    std::lock_guard lock(running_mutex_);
    running = running_;
  }
  for (auto& [number, event] : running)
    if (number <= sequence && !event->ready()) event->await();
}

void Runtime::drain() {
  if (!initialized()) return;
  require_usable();
  wait_for(submitted());
}

void Runtime::synchronize() {
  drain();
  tell_failed_checks(nullptr, /*nobodys=*/true);
}

Stats Runtime::stats() const {
  Stats s;
  if (compiler_) s.compile = compiler_->stats();
  s.calls = calls_;
  s.programs_run = programs_run_;
  s.memory_hits = memory_hits_;
  s.run_seconds = static_cast<double>(run_ns_) * 1e-9;
  s.wait_compile_seconds = static_cast<double>(wait_ns_) * 1e-9;
  s.scalar_uploads = uploads_;
  return s;
}

void Runtime::reset_stats() {
  if (compiler_) compiler_->reset_stats();
  calls_ = programs_run_ = memory_hits_ = run_ns_ = wait_ns_ = uploads_ = 0;
}

void Runtime::shutdown() {
  if (!initialized() || forked()) return;
  stopping_ = true;
  sleeping_.store(0);
  sleeping_.notify_all();
  compiler_->stop();
  if (execute_thread_.joinable()) execute_thread_.join();
}

}  // namespace torch_tpu::run
