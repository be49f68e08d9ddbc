package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
	kyaml "sigs.k8s.io/yaml"
)

func decodeVerb(out io.Writer, files []string) error {
	var problems error
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		kinds, err := decode(text, checkObject)
		if err == nil && len(kinds) == 0 {
			err = errors.New("no document in it")
		}
		if err != nil {
			problems = errors.Join(problems, fmt.Errorf("%s: %w", file, err))
			continue
		}
		fmt.Fprintf(out, "%s: %s\n", file, strings.Join(kinds, ", "))
	}
	return problems
}

// decode decodes every document of a YAML stream strictly, has each looked at, and returns their kinds with their names.
func decode(stream []byte, look func(kind string, object runtime.Object) error) (kinds []string, problems error) {
	known := runtime.NewScheme()
	if err := errors.Join(scheme.AddToScheme(known), monitoring.AddToScheme(known)); err != nil {
		return nil, err
	}
	strict := serializer.NewCodecFactory(known, serializer.EnableStrict).UniversalDeserializer()
	reader := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(stream)))
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return kinds, problems
		}
		if err != nil {
			return kinds, errors.Join(problems, err)
		}
		if empty(document) {
			continue
		}
		kind, err := decodeOne(strict, document, look)
		if err != nil {
			problems = errors.Join(problems, fmt.Errorf("%s: %w", kind, err))
		}
		kinds = append(kinds, kind)
	}
}

func decodeOne(strict runtime.Decoder, document []byte, look func(string, runtime.Object) error) (kind string, err error) {
	var head struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
	}
	if err := kyaml.Unmarshal(document, &head); err != nil {
		return "document", err
	}
	kind = head.Kind + " " + head.Name
	if head.Name == "" {
		return kind, errors.New("it has no metadata.name")
	}
	if head.APIVersion == clusterPolicyVersion && head.Kind == "ClusterPolicy" {
		return kind, kyaml.UnmarshalStrict(document, &clusterPolicy{})
	}
	object, _, err := strict.Decode(document, nil, nil)
	if err != nil {
		return kind, err
	}
	return kind, look(kind, object)
}

// empty tells whether a document has nothing but comments.
func empty(document []byte) bool {
	for line := range strings.Lines(string(document)) {
		if line = strings.TrimSpace(line); line != "" && line != "---" && !strings.HasPrefix(line, "#") {
			return false
		}
	}
	return true
}
