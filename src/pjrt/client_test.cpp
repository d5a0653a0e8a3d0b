// SPDX-License-Identifier: Apache-2.0 - clients, devices, buffers and events on a real plugin.
#include "src/pjrt/client.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <thread>

#include "src/pjrt/test_plugin.h"

// Under AddressSanitizer an allocation that is too large fails, as it does without, and doesn't end
// the process: RefusesMoreMemoryThanThereIs is about just that.
extern "C" __attribute__((visibility("default"))) const char* __asan_default_options() {
  return "allocator_may_return_null=1";
}

namespace torch_tpu::pjrt {
namespace {

using testing::add_module;
using testing::error_of;
using testing::floats;
using testing::read_floats;
using testing::test_client;
using testing::test_plugin;

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Waits for something that another thread of the plugin does.
template <typename Condition>
bool eventually(Condition condition) {
  for (int i = 0; i < 2000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

struct AlignedFloats {
  explicit AlignedFloats(size_t count)
      : data(static_cast<float*>(std::aligned_alloc(64, (count * 4 + 63) / 64 * 64))) {}
  ~AlignedFloats() { std::free(data); }
  float* data;
};

TEST(Client, KnowsItsDevices) {
  const auto& client = test_client();
  EXPECT_EQ(client->platform_name(), "cpu");
  EXPECT_TRUE(client->is_cpu());
  EXPECT_EQ(client->process_index(), 0);
  ASSERT_EQ(client->device_count(), 2);
  const DeviceDescription second = client->describe(client->device(1));
  EXPECT_EQ(second.id, 1);
  EXPECT_EQ(second.kind, "cpu");
  EXPECT_FALSE(second.to_string.empty());
  EXPECT_FALSE(client->memory_stats(client->device(0)).has_value());
  EXPECT_TRUE(contains(error_of([&] { client->device(2); }), "device 2 doesn't exist"));
  EXPECT_TRUE(contains(error_of([&] { client->device(-1); }), "device -1 doesn't exist"));
}

TEST(Client, OptionsThatAPluginDoesNotKnowAreNoObstacle) {
  ClientOptions options;
  options.asynchronous = false;
  EXPECT_EQ(Client::create(test_plugin(), options)->device_count(), 1);
  options.cpu_device_count = 0;
  EXPECT_TRUE(
      contains(error_of([&] { Client::create(test_plugin(), options); }), "cpu_device_count is 0"));
}

TEST(Buffer, GoesToTheDeviceAndBack) {
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  const std::array<int64_t, 2> dims = {2, 3};
  const auto& client = test_client();
  const Buffer buffer = client->from_host(values.data(), kF32, dims, client->device(1));
  buffer.await();
  EXPECT_TRUE(buffer.ready());
  EXPECT_EQ(buffer.type(), kF32);
  EXPECT_EQ(std::vector<int64_t>(buffer.dims().begin(), buffer.dims().end()),
            std::vector<int64_t>({2, 3}));
  EXPECT_EQ(buffer.nbytes(), 24u);
  EXPECT_EQ(buffer.host_nbytes(), 24u);
  EXPECT_EQ(buffer.device(), client->device(1));
  EXPECT_EQ(read_floats(buffer), values);
  std::vector<float> copy(6);
  buffer.to_host_async(copy.data(), 24).await();
  EXPECT_EQ(copy, values);
  const Buffer moved = buffer.copy_to_device(client->device(0));
  EXPECT_EQ(moved.device(), client->device(0));
  EXPECT_EQ(read_floats(moved), values);
}

TEST(Buffer, ScalarsAndEmptyArrays) {
  const double value = 2.5;
  const auto& client = test_client();
  const Buffer scalar = client->from_host(&value, kF64, {}, client->device(0));
  double back = 0;
  scalar.to_host(&back, sizeof back);
  EXPECT_EQ(back, 2.5);
  const std::array<int64_t, 2> dims = {0, 3};
  const Buffer empty = client->from_host(nullptr, kF32, dims, client->device(0));
  EXPECT_EQ(empty.host_nbytes(), 0u);
  empty.to_host(nullptr, 0);
  empty.to_host_async(nullptr, 0).await();
}

TEST(Buffer, ElementTypesKeepTheirBytes) {
  const auto& client = test_client();
  const std::array<int64_t, 1> dims = {4};
  for (const int type :
       {kPred, kS8, kU8, kS16, kF16, kBF16, kS32, kS64, kF64, kC64, kC128, kF8E5M2, kF8E4M3FN}) {
    std::string bytes(4 * element_bits(type) / 8, '\1');
    const Buffer buffer = client->from_host(bytes.data(), type, dims, client->device(0));
    EXPECT_EQ(buffer.type(), type);
    std::string back(bytes.size(), '\0');
    buffer.to_host(back.data(), back.size());
    EXPECT_EQ(back, bytes) << element_name(type);
  }
}

TEST(Buffer, HostPointerIsTheMemoryItself) {
  const Buffer buffer = floats({1, 2, 3});
  buffer.await();
  auto* data = static_cast<float*>(buffer.host_pointer());
  ASSERT_NE(data, nullptr);
  EXPECT_EQ(data[2], 3);
  data[2] = 7;
  EXPECT_EQ(read_floats(buffer), std::vector<float>({1, 2, 7}));
}

TEST(Buffer, WrongSizesAndArgumentsAreErrors) {
  const Buffer buffer = floats({1, 2, 3});
  std::array<float, 4> out{};
  EXPECT_TRUE(contains(error_of([&] { buffer.to_host(out.data(), 16); }),
                       "the destination has 16 bytes, the array has 12"));
  EXPECT_TRUE(contains(error_of([&] { buffer.to_host(out.data(), 8); }),
                       "the destination has 8 bytes, the array has 12"));
  const auto& client = test_client();
  const std::array<int64_t, 1> negative = {-2};
  EXPECT_TRUE(
      contains(error_of([&] { client->from_host(out.data(), kF32, negative, client->device(0)); }),
               "a dimension is -2"));
  const std::array<int64_t, 1> one = {1};
  EXPECT_TRUE(contains(error_of([&] { client->from_host(nullptr, kF32, one, client->device(0)); }),
                       "the data pointer is null"));
  EXPECT_TRUE(contains(error_of([&] { client->from_host(out.data(), 99, one, client->device(0)); }),
                       "element type 99"));
}

TEST(Buffer, RefusesMoreMemoryThanThereIs) {
  const auto program = test_client()->compile(
      "module @big { func.func public @main(%a: tensor<f32>) -> tensor<16777216x16777216xf32> { %0 "
      "= "
      "stablehlo.broadcast_in_dim %a, dims = [] : (tensor<f32>) -> tensor<16777216x16777216xf32> "
      "return %0 : tensor<16777216x16777216xf32> } }");
  const float one = 1;
  const Buffer input = test_client()->from_host(&one, kF32, {}, test_client()->device(0));
  std::array<PJRT_Buffer*, 1> in = {input.raw()};
  std::array<PJRT_Buffer*, 1> out = {};
  try {
    program.execute(in, {}, out);
    Buffer(test_client()->api(), out[0]).await();
    FAIL() << "a petabyte was allocated";
  } catch (const Error& error) {
    EXPECT_TRUE(error.is_out_of_memory()) << error.code() << ' ' << error.what();
  }
  EXPECT_EQ(read_floats(floats({1})), std::vector<float>({1}));
}

TEST(Buffer, DeletedBuffersSaySo) {
  Buffer buffer = floats({1, 2});
  buffer.await();
  EXPECT_FALSE(buffer.is_deleted());
  buffer.delete_now();
  EXPECT_TRUE(buffer.is_deleted());
  EXPECT_NE(error_of([&] { buffer.await(); }), "");
  EXPECT_NE(error_of([&] { read_floats(buffer); }), "");
}

TEST(Buffer, MoveAndRelease) {
  Buffer first = floats({1});
  PJRT_Buffer* raw = first.raw();
  Buffer second = std::move(first);
  EXPECT_FALSE(first);
  EXPECT_EQ(second.raw(), raw);
  EXPECT_TRUE(contains(error_of([&] { first.type(); }), "this Buffer is empty"));
  PJRT_Buffer* released = second.release();
  EXPECT_FALSE(second);
  const Buffer third(test_client()->api(), released);
  EXPECT_EQ(read_floats(third), std::vector<float>({1}));
}

TEST(ZeroCopy, SharesAlignedMemoryUntilReleased) {
  const auto& client = test_client();
  const AlignedFloats host(64);
  for (int i = 0; i < 64; ++i) host.data[i] = static_cast<float>(i);
  const std::array<int64_t, 1> dims = {64};
  std::atomic<int> released = 0;
  {
    const Buffer buffer =
        client->from_host(host.data, kF32, dims, client->device(0),
                          HostSemantics::zero_copy_until_released, [&] { ++released; });
    buffer.await();
    EXPECT_EQ(buffer.host_pointer(), host.data);
    EXPECT_EQ(released, 0);
    EXPECT_EQ(read_floats(buffer)[63], 63);
  }
  EXPECT_TRUE(eventually([&] { return released == 1; }));
}

TEST(ZeroCopy, CopiesUnalignedMemoryAndReleasesIt) {
  const auto& client = test_client();
  const AlignedFloats host(65);
  std::atomic<int> released = 0;
  const std::array<int64_t, 1> dims = {64};
  const Buffer buffer =
      client->from_host(host.data + 1, kF32, dims, client->device(0),
                        HostSemantics::zero_copy_until_released, [&] { ++released; });
  buffer.await();
  EXPECT_NE(buffer.host_pointer(), host.data + 1);
  EXPECT_TRUE(eventually([&] { return released == 1; }));
}

TEST(ZeroCopy, ReleasesWhenTheCallFails) {
  int released = 0;
  const std::array<int64_t, 1> dims = {1};
  EXPECT_NE(error_of([&] {
              test_client()->from_host(nullptr, kF32, dims, test_client()->device(0),
                                       HostSemantics::zero_copy_until_released,
                                       [&] { ++released; });
            }),
            "");
  EXPECT_EQ(released, 1);
}

TEST(ZeroCopy, ViewsOfForeignMemory) {
  const auto& client = test_client();
  const AlignedFloats host(16);
  host.data[3] = 5;
  const std::array<int64_t, 1> dims = {16};
  std::atomic<int> deleted = 0;
  {
    const Buffer view =
        client->view_of_device_memory(host.data, kF32, dims, client->device(0), [&] { ++deleted; });
    EXPECT_EQ(view.host_pointer(), host.data);
    EXPECT_EQ(read_floats(view)[3], 5);
    host.data[3] = 6;
    EXPECT_EQ(read_floats(view)[3], 6);
    EXPECT_EQ(deleted, 0);
  }
  EXPECT_TRUE(eventually([&] { return deleted == 1; }));
  // Without a callback, too: the plugins abort when given none.
  client->view_of_device_memory(host.data, kF32, dims, client->device(0));
}

TEST(Event, CallsBackAndWaits) {
  const auto program = test_client()->compile(add_module(2));
  const Buffer a = floats({1, 2});
  std::array<PJRT_Buffer*, 2> in = {a.raw(), a.raw()};
  std::array<PJRT_Buffer*, 1> out = {};
  Event done;
  EXPECT_TRUE(done.ready());
  program.execute(in, {}, out, &done);
  const Buffer result(test_client()->api(), out[0]);
  ASSERT_TRUE(done);
  done.await();
  EXPECT_TRUE(done.ready());
  EXPECT_EQ(read_floats(result), std::vector<float>({2, 4}));
  std::atomic<int> called = 0;
  done.on_ready([&](const Error* error) { called = error == nullptr ? 1 : 2; });
  EXPECT_TRUE(eventually([&] { return called == 1; }));
  called = 0;
  Event().on_ready([&](const Error* error) { called = error == nullptr ? 1 : 2; });
  EXPECT_EQ(called, 1);
}

TEST(Event, CallsBackWithTheError) {
  Buffer buffer = floats({1, 2});
  buffer.await();
  buffer.delete_now();
  std::atomic<int> code = -1;
  buffer.ready_event().on_ready([&](const Error* error) { code = error == nullptr ? 0 : 1; });
  EXPECT_TRUE(eventually([&] { return code == 1; }));
}

}  // namespace
}  // namespace torch_tpu::pjrt
