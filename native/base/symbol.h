// A function of a library that is opened at run time.
#pragma once

namespace lockstep {

template <typename Signature>
class Symbol {
 public:
  // library.symbol(name) is its address; it throws where there is none.
  template <typename Library>
  Symbol(const Library& library, const char* name)
      : call_(reinterpret_cast<Signature*>(library.symbol(name))) {}
  operator Signature*() const { return call_; }

 private:
  Signature* call_;
};

}  // namespace lockstep
