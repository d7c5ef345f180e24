// Functions of the user's own (autograd/function.h).
#include <halo/autograd/node.h>

#include <string>
#include <vector>

#include "tests/testing.h"

namespace halo {
namespace {

using testing::leaf;
using testing::message_of;
using testing::same;

/// scale * x^3, saving its input.
struct Cube {
  const char* name = "cube";
  double scale = 1;
  Tensor forward(FunctionContext& context, const TensorList& in) {
    EXPECT_FALSE(grad_enabled());
    context.save_for_backward({in[0]});
    return in[0] * in[0] * in[0] * scale;
  }
  TensorList backward(FunctionContext& context, const TensorList& g) {
    const Tensor& x = context.saved_tensors()[0];
    return {g[0] * x * x * (3 * scale)};
  }
};

/// (exp x, x y, sign of x), saving a result, an input and a mask; the last result has no gradient.
struct Several {
  std::string name = "several";
  TensorList forward(FunctionContext& context, const TensorList& in) {
    const Tensor e = exp(in[0]), positive = gt(in[0], zeros_like(in[0]));
    context.save_for_backward({e, in[0], in[1], positive});
    return {e, in[0] * in[1], positive.to(int64)};
  }
  TensorList backward(FunctionContext& context, const TensorList& g) {
    const TensorList& s = context.saved_tensors();
    EXPECT_EQ(s[3].dtype(), DType::Bool);
    return {g[0] * s[0] + g[1] * s[2], context.needs_input_grad(1) ? g[1] * s[1] : Tensor()};
  }
};

TEST(Function, FirstAndSecondOrder) {
  const Tensor x = leaf(from_vector<double>({0.3, -1.2, 2}, {3}));
  const auto result =
      gradcheck([](const TensorList& in) { return apply_function(Cube{.scale = 0.5}, {sin(in[0])}); }, {x});
  EXPECT_TRUE(result.ok) << result.message;
  const Tensor y = leaf(from_vector<double>({1, 2, -0.5}, {3}));
  const auto several = [](const TensorList& in) {
    const TensorList out = apply_function(Several{}, in);
    return out[0] * out[0] + sin(out[1]);
  };
  const auto both = gradcheck(several, {x, y});
  EXPECT_TRUE(both.ok) << both.message;
  struct Wrong : Cube {
    TensorList backward(FunctionContext& context, const TensorList& g) {
      return {g[0] * context.saved_tensors()[0] * 3.0};
    }
  };
  EXPECT_FALSE(gradcheck([](const TensorList& in) { return apply_function(Wrong{}, in); }, {x}).ok);
}

TEST(Function, UnwantedAndIntegerPartsHaveNoGradient) {
  const Tensor x = leaf(tensor({1, -2})), y = tensor({3, 4});
  const TensorList out = apply_function(Several{}, {x, y});
  EXPECT_TRUE(out[0].requires_grad());
  EXPECT_FALSE(out[2].requires_grad());
  out[1].sum().backward();  // out[0] gets none: zeros stand in
  EXPECT_TRUE(same(x.grad(), y));
  const NoGradGuard guard;
  EXPECT_FALSE(apply_function(Cube{}, {x}).requires_grad());
}

TEST(Function, ResultsAreTensorsOfTheirOwn) {
  struct Same {
    const char* name = "same";
    Tensor cached{};
    TensorList forward(FunctionContext&, const TensorList& in) { return {in[0], cached, cached}; }
    TensorList backward(FunctionContext&, const TensorList& g) { return {g[0] + g[1]}; }
  };
  const Tensor x = leaf(tensor({1})), cached = tensor({2});
  const TensorList out = apply_function(Same{.cached = cached}, {x});
  EXPECT_FALSE(cached.requires_grad());
  EXPECT_TRUE(x.is_leaf());
  (out[0] * 3.0 + out[1] * 5.0).backward();
  EXPECT_EQ(x.grad().item(), 8);
}

TEST(Function, UndefinedInputs) {
  struct Plus {
    const char* name = "plus";
    Tensor forward(FunctionContext& context, const TensorList& in) {
      context.save_for_backward({in[1]});
      return in[1].defined() ? in[0] + in[1] : in[0];
    }
    TensorList backward(FunctionContext& context, const TensorList& g) {
      return {g[0], context.saved_tensors()[0].defined() ? g[0] : Tensor()};
    }
  };
  const Tensor x = leaf(tensor({1}));
  apply_function(Plus{}, {x, Tensor()}).backward();
  EXPECT_EQ(x.grad().item(), 1);
}

/// The gradient comes from plain memory: nothing records it.
struct Opaque : Cube {
  bool once_differentiable = true;
  TensorList backward(FunctionContext& context, const TensorList& g) {
    EXPECT_FALSE(grad_enabled());
    auto values = g[0].to_vector<double>();
    const auto x = context.saved_tensors()[0].to_vector<double>();
    for (std::size_t i = 0; i < values.size(); ++i) values[i] *= 3 * x[i] * x[i];
    return {from_vector(values, g[0].shape())};
  }
};

TEST(Function, OnceDifferentiable) {
  const Tensor x = leaf(from_vector<double>({2}, {1}));
  const auto once =
      gradcheck([](const TensorList& in) { return apply_function(Opaque{}, in); }, {x}, {.second_order = false});
  EXPECT_TRUE(once.ok) << once.message;
  const Tensor first = grad({apply_function(Opaque{}, {x})}, {x}, {}, {.create_graph = true})[0];
  EXPECT_EQ(first.item(), 12);
  const std::string text = message_of([&] { grad({first * x}, {x}); });
  EXPECT_NE(text.find("once_differentiable"), std::string::npos) << text;
  // A path around it is no reason to fail.
  const Tensor beside = grad({apply_function(Opaque{}, {x}) + x * x}, {x}, {}, {.create_graph = true})[0];
  EXPECT_EQ(beside.item(), 16);
}

struct SavesOther : Cube {
  Tensor forward(FunctionContext& context, const TensorList& in) {
    const Tensor square = in[0] * in[0];
    context.save_for_backward({square});
    return square * in[0];
  }
  TensorList backward(FunctionContext& context, const TensorList& g) {
    return {g[0] * context.saved_tensors()[0] * 3.0};
  }
};

TEST(Function, MistakesAreNamed) {
  const Tensor x = leaf(tensor({1, 2}));
  const std::string other =
      message_of([&] { grad({apply_function(SavesOther{}, {x}).sum()}, {x}, {}, {.create_graph = true}); });
  EXPECT_NE(other.find("neither an input nor a result"), std::string::npos) << other;
  apply_function(SavesOther{}, {x}).sum().backward();  // first order is right
  EXPECT_TRUE(same(x.grad(), tensor({3, 12})));

  struct TooMany : Cube {
    TensorList backward(FunctionContext&, const TensorList& g) { return {g[0], g[0]}; }
  };
  const std::string number = message_of([&] { apply_function(TooMany{}, {x}).sum().backward(); });
  EXPECT_NE(number.find("cube expected to return 1 gradients, one an input, got 2"), std::string::npos) << number;
  struct Shape : Cube {
    TensorList backward(FunctionContext&, const TensorList& g) { return {g[0].sum()}; }
  };
  const std::string shape = message_of([&] { apply_function(Shape{}, {x}).sum().backward(); });
  EXPECT_NE(shape.find("float32 [2] on cpu for input 0, got float32 [] on cpu"), std::string::npos) << shape;
  struct InPlace : Cube {
    Tensor forward(FunctionContext&, const TensorList& in) { return in[0].mul_(2); }
  };
  const std::string place = message_of([&] { apply_function(InPlace{}, {x}); });
  EXPECT_NE(place.find("changed input 0 in place"), std::string::npos) << place;
  struct Undefined : Cube {
    Tensor forward(FunctionContext&, const TensorList&) { return {}; }
  };
  EXPECT_THROW(apply_function(Undefined{}, {x}), ArgumentError);

  const Tensor z = x * 1.0;
  const Tensor y = apply_function(Cube{}, {z});
  {
    const NoGradGuard guard;
    z.add_(ones({2}));
  }
  const std::string changed = message_of([&] { y.sum().backward(); });
  EXPECT_NE(changed.find("cube saved"), std::string::npos) << changed;
}

TEST(Function, InsideACheckpoint) {
  const Tensor x = leaf(tensor({0.5f, 2})), plain = leaf(x);
  checkpoint([](const Tensor& t) { return apply_function(Cube{.scale = 2}, {exp(t)}); }, x).sum().backward();
  apply_function(Cube{.scale = 2}, {exp(plain)}).sum().backward();
  EXPECT_TRUE(same(x.grad(), plain.grad()));
}

TEST(Function, NothingStaysBehind) {
  const int64_t nodes = autograd::live_nodes();
  {
    const Tensor x = leaf(tensor({1, 2})), y = leaf(tensor({1, 2}));
    const TensorList out = apply_function(Several{}, {x, y});  // saves its own result
    (void)grad({out[0].sum()}, {x}, {}, {.create_graph = true});
  }
  EXPECT_EQ(autograd::live_nodes(), nodes);
}

}  // namespace
}  // namespace halo
