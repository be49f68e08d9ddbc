package main

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

const clusterPolicyVersion = "nvidia.com/v1"

// clusterPolicy is the part of NVIDIA's ClusterPolicy that the examples set. The names, types and JSON tags are those of
// gpu-operator's api/nvidia/v1/clusterpolicy_types.go (checked against its main branch in 2026); its Go module has no
// versions that a module proxy serves, so that the type itself cannot be linked. Decoded strictly, another field is an
// error here, although the operator may know it.
type clusterPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec struct {
		Driver struct {
			Enabled          *bool  `json:"enabled"`
			Version          string `json:"version"`
			KernelModuleType string `json:"kernelModuleType"`
			RDMA             struct {
				Enabled      *bool `json:"enabled"`
				UseHostMOFED *bool `json:"useHostMofed"`
			} `json:"rdma"`
		} `json:"driver"`
		GPUDirectStorage struct {
			Enabled *bool  `json:"enabled"`
			Version string `json:"version"`
		} `json:"gds"`
	} `json:"spec"`
}
