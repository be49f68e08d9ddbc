// Command k8scheck renders the Helm chart and checks everything under deploy that Kubernetes or Helm will read, against their own
// code: Helm's engine and lint, the Kubernetes API types.
//
//	k8scheck render CHART [VALUES]           print what `helm template` would install, in the order of installation
//	k8scheck chart CHART [VALUES...]         lint, render and decode it with its own values and with each file
//	k8scheck refused CHART VALUES...         each of these files must be refused
//	k8scheck decode FILE...                  decode manifests strictly
//	k8scheck security LEVEL FILE...          what a Pod Security Standard has against each pod
//
// It is a module of its own, so that none of these dependencies becomes one of hbmfs. Decoding is strict: a field that
// the API does not know, or that is there twice, is an error. An API server's checks beyond types are made here only
// where a mistake is likely: see pods.go.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
)

var errUsage = errors.New("usage: k8scheck render|chart|refused|decode|security and what to check")

func main() {
	if err := run(context.Background(), os.Stdout, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "k8scheck:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer, args []string) error {
	if len(args) < 2 {
		return errUsage
	}
	verb, first, rest := args[0], args[1], args[2:]
	switch verb {
	case "render":
		return renderVerb(ctx, out, first, rest)
	case "chart":
		return chartVerb(ctx, out, first, rest)
	case "refused":
		return refusedVerb(ctx, out, first, rest)
	case "decode":
		return decodeVerb(out, append([]string{first}, rest...))
	case "security":
		return securityVerb(out, first, rest)
	}
	return errUsage
}
