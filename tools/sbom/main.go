// Command sbom writes the list of a release's parts, in the form of CycloneDX. It has each program, and each Go module that
// its linker put into it, as the program itself says (`go version -m`).
//
//	sbom --version v0.2.0 PROGRAM... > hbmfs.cdx.json
//
// SOURCE_DATE_EPOCH is the time in it, so that the same programs give the same list.
package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/CycloneDX/cyclonedx-go"
)

const self = "github.com/hbmfs/hbmfs"

func main() {
	version := flag.String("version", "", "version of the release")
	flag.Parse()
	if err := run(os.Stdout, *version, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

func run(out io.Writer, version string, programs []string) error {
	seconds, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		return fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
	}
	release := cyclonedx.Component{
		Type: cyclonedx.ComponentTypeApplication, BOMRef: purl(self, version), Name: self, Version: version, PackageURL: purl(self, version),
		Licenses: &cyclonedx.Licenses{{License: &cyclonedx.License{ID: "Apache-2.0"}}},
	}
	var files []cyclonedx.Component
	modules := map[string]cyclonedx.Component{}
	dependencies := []cyclonedx.Dependency{}
	for _, path := range programs {
		file, needs, err := program(path)
		if err != nil {
			return err
		}
		var refs []string
		for _, m := range needs {
			modules[m.BOMRef] = m
			refs = append(refs, m.BOMRef)
		}
		files = append(files, file)
		dependencies = append(dependencies, cyclonedx.Dependency{Ref: file.BOMRef, Dependencies: &refs})
	}
	for _, ref := range slices.Sorted(maps.Keys(modules)) {
		files = append(files, modules[ref])
	}
	bom := cyclonedx.NewBOM()
	bom.Metadata = &cyclonedx.Metadata{Timestamp: time.Unix(seconds, 0).UTC().Format(time.RFC3339), Component: &release}
	bom.Components, bom.Dependencies = &files, &dependencies
	return cyclonedx.NewBOMEncoder(out, cyclonedx.BOMFileFormatJSON).SetPretty(true).Encode(bom)
}

// program describes one program, named by the folder of its architecture and itself, and the modules in it.
func program(path string) (cyclonedx.Component, []cyclonedx.Component, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return cyclonedx.Component{}, nil, err
	}
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return cyclonedx.Component{}, nil, fmt.Errorf("%s: %w", path, err)
	}
	name := filepath.Join(filepath.Base(filepath.Dir(path)), filepath.Base(path))
	sum := sha256.Sum256(content)
	file := cyclonedx.Component{
		Type: cyclonedx.ComponentTypeFile, BOMRef: "file:" + name, Name: name,
		Hashes: &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: hex.EncodeToString(sum[:])}},
	}
	needs := []cyclonedx.Component{module("std", strings.TrimPrefix(info.GoVersion, "go"))}
	for _, m := range info.Deps {
		needs = append(needs, module(replaced(m).Path, replaced(m).Version))
	}
	return file, needs, nil
}

func replaced(m *debug.Module) *debug.Module {
	if m.Replace != nil {
		return m.Replace
	}
	return m
}

func module(path, version string) cyclonedx.Component {
	return cyclonedx.Component{
		Type: cyclonedx.ComponentTypeLibrary, BOMRef: purl(path, version), Name: path, Version: version, PackageURL: purl(path, version),
	}
}

func purl(path, version string) string {
	return "pkg:golang/" + path + "@" + strings.ReplaceAll(version, "+", "%2B")
}
