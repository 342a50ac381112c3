// SPDX-License-Identifier: Apache-2.0
// Calls in the source of the program, for messages about its mistakes.
#pragma once

#include <workshop_cpu.h>

#include <string>

namespace workshop::cpu {

// The call that the program is in. Where that is not known, `call` without a place.
SourceCall source_call(const char* call);

// "02_ddp/ddp.cu:41": the folder and the name of the file are enough. Empty where the place is not known.
std::string place(const SourceCall& call);

// False for calls that look after the program, in files that looks_after_program() has named.
bool of_the_program(const SourceCall& call);

// Ends the program because it has made a mistake.
[[noreturn]] void end_with_mistake(const std::string& message);

}  // namespace workshop::cpu
