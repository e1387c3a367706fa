/* SPDX-License-Identifier: Apache-2.0
 * Runs only when every header linked twice: prints the version of the contract, for the log. */
#include <dropless/contract.h>
#include <stdio.h>

int main(void) {
  printf("contract %u\n", (unsigned)DROPLESS_CONTRACT_VERSION);
  return 0;
}
